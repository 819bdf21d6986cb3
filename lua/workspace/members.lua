#!lua
-- Adds members to a set of a session, or removes them.
-- returns: ok revision, version of the set, number of changes | duplicate, the same | fenced value |
--          occupied value ms | full what
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms window_ms ops items bytes events event_bytes parts json
local name    = ARGV[3]                      -- str: name of the set, encoded
local mode    = ARGV[4]                      -- str: add or remove
local rows    = cmsgpack.unpack(ARGV[5])     -- rows: member
local now_arg = ARGV[6]                      -- time: test override, microseconds
--@include workspace: has_room, part_version, open_workspace, close_workspace

local part = 'ws:set:' .. name
local set_key = scope .. ':ws:set:' .. name
local ws, answer = open_workspace(scope, mode, caller, limits, {':' .. part}, now_arg)
if not ws then return answer end
local number = part_version(scope, ws, part)
if not number then return {'full', 'parts'} end
local members, changed, change = {}, {}, {name}
for i = 1, #rows do members[i] = rows[i].member end
local there = redis.call('SMISMEMBER', set_key, unpack(members))
for i = 1, #members do
  if (there[i] == 0) == (mode == 'add') then
    changed[#changed + 1] = members[i]
    change[1 + #changed] = members[i]
    if mode == 'add' then
      ws.items, ws.bytes = ws.items + 1, ws.bytes + #members[i]
    else
      ws.items, ws.bytes = ws.items - 1, ws.bytes - #members[i]
    end
  end
end
if #changed == 0 then return close_workspace(scope, ws, false, {number, 0}) end
local fits, full = has_room(ws)
if not fits then return {'full', full} end
if mode == 'add' then
  redis.call('SADD', set_key, unpack(changed))
else
  redis.call('SREM', set_key, unpack(changed))
end
ws.parts[part] = number + 1
return close_workspace(scope, ws, change, {number + 1, #changed})
