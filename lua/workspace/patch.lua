#!lua
-- Changes paths of a session's document, or of an agent's private scratch: all rows or none.
-- modes: set | del | incr (adds the value)
-- conditions: any | is (the stored version is this one; 0: the path is empty) | newer (this becomes the version, and
-- must be higher than the stored one)
-- returns: ok revision, per row its version and the new number of an incr | duplicate, the same | fenced value |
--          occupied value ms | conflict path version revision | full what | number path (an incr of a value that is no whole number below
--          2^53)
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms window_ms ops items bytes events event_bytes parts json
local rows    = cmsgpack.unpack(ARGV[3])     -- rows: path mode value condition number
local owner   = ARGV[4]                      -- str: the agent that owns the scratch; empty: the shared document
local now_arg = ARGV[5]                      -- time: test override, microseconds
--@include time: integer
--@include workspace: split_value, event_value, has_room, part_version, set_json_path, open_workspace, close_workspace

local most = 9007199254740991
local private = owner ~= ''
local part = 'agent:' .. owner .. ':kv'
local doc_key = scope .. ':ws:doc'
if private then doc_key = scope .. ':agent:' .. owner .. ':kv' end
local ws, answer = open_workspace(
  scope, private and 'scratch:' .. owner or 'patch', caller, limits, {private and ':' .. part or ':ws:doc'}, now_arg)
if not ws then return answer end
if private then
  local number = part_version(scope, ws, part)
  if not number then return {'full', 'parts'} end
  ws.parts[part] = number + 1
end

local paths = {}
for i = 1, #rows do paths[i] = rows[i].path end
local stored = redis.call('HMGET', doc_key, unpack(paths))
--@rows projected: path text
local written, removed, changes, projected = {}, {}, {}, {}
answer = {}
for i = 1, #rows do
  local path, mode, value, condition, number = unpack(rows[i])
  local version, _, before = split_value(stored[i])
  if (condition == 'is' and version ~= number) or (condition == 'newer' and version >= number) then
    return {'conflict', path, version, ws.rev}
  end
  if stored[i] then
    ws.items, ws.bytes = ws.items - 1, ws.bytes - #path - #stored[i]
  end
  if mode == 'del' then
    if stored[i] then
      removed[#removed + 1] = path
      ws.floor = math.max(ws.floor, version)
      changes[#changes + 1] = {path, version, false, event_value(before, ws.event_bytes)}
      projected[#projected + 1] = {path, false}
    end
    answer[#answer + 1] = version
    answer[#answer + 1] = ''
  else
    local told = ''
    if mode == 'incr' then
      local sum = tonumber(value)
      if before then
        if not string.match(before, '^-?%d+$') then return {'number', path} end
        local held = tonumber(before)
        if held > most or held < -most then return {'number', path} end
        sum = sum + held
      end
      if sum > most or sum < -most then return {'number', path} end
      if sum == 0 then sum = 0 end
      value = integer(sum + 0)
      if value == '-0' then value = '0' end
      told = value
    end
    if condition == 'newer' then
      version = number
    elseif version > 0 then
      version = version + 1
    else
      -- Versions continue when a deleted path returns, so that no reader mistakes it for the old value.
      version = ws.floor + 1
    end
    ws.top = math.max(ws.top, version)
    local entry = integer(version) .. ' ' .. ws.agent .. ' ' .. value
    ws.items, ws.bytes = ws.items + 1, ws.bytes + #path + #entry
    written[#written + 1] = path
    written[#written + 1] = entry
    changes[#changes + 1] = {path, version, event_value(value, ws.event_bytes), event_value(before, ws.event_bytes)}
    projected[#projected + 1] = {path, value}
    answer[#answer + 1] = version
    answer[#answer + 1] = told
  end
end
local fits, full = has_room(ws)
if not fits then return {'full', full} end

if ws.json and not private then
  for i = 1, #projected do set_json_path(scope, projected[i].path, projected[i].text) end
end
if #written > 0 then redis.call('HSET', doc_key, unpack(written)) end
if #removed > 0 then redis.call('HDEL', doc_key, unpack(removed)) end
return close_workspace(scope, ws, not private and #changes > 0 and changes, answer)
