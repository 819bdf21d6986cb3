-- Name the tasks that died with one: of `ids`, those that the same worker held (`from`, or all when it is nil). The poison
-- may be any of them (protocol rule 8).
local function co_running(ids, from, index)
  local named, more = {}, 0
  for i = 1, #ids do
    if i ~= index and ids[i] ~= '' and (not from or from[i] == from[index]) then
      if #named < 5 then named[#named + 1] = ids[i] else more = more + 1 end
    end
  end
  if #named == 0 then return '' end
  local text = ', with ' .. table.concat(named, ' ')
  if more > 0 then text = text .. ' and ' .. more .. ' more' end
  return text
end
