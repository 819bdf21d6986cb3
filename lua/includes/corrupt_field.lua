-- What makes the record of a task useless to everybody who meets it: the name of the field, or nil.
local function corrupt_field(task)
  if not task.state or not string.match(task.state, '^[%l_]+$') then return 'state' end
  if not string.match(task.gen or '', '^%d+$') then return 'gen' end
  for _, name in ipairs({'by', 'fails', 'deaths', 'due'}) do
    if task[name] and not string.match(task[name], '^%d+$') then return name end
  end
  if task.queue and not string.match(task.queue, '^agent:.') and not string.match(task.queue, '^skill:.') then return 'queue' end
  -- MessagePack: an array whose first item is a text that is not empty.
  local opens, size = string.byte(task.env or '', 1, 2)
  if not size or not ((opens > 144 and opens < 160) or opens == 220) then return 'env' end
  if size ~= 217 and (size < 161 or size > 191) then return 'env' end
  return nil
end
