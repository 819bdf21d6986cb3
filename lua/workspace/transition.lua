#!lua
-- Moves one entry of a session's state machines to another state.
-- expects: any | absent (the entry must not exist) | one (its state must be among `rows`)
-- returns: ok revision, version | duplicate, the same | fenced value | occupied value ms | state current version (another
--          state than expected; '': no such entry) | full what
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms window_ms ops items bytes events event_bytes parts json
local id      = ARGV[3]                      -- str: the entry
local to      = ARGV[4]                      -- str: the new state
local text    = ARGV[5]                      -- str: its data, JSON
local expects = ARGV[6]                      -- str: any, absent or one
local rows    = cmsgpack.unpack(ARGV[7])     -- rows: state
local now_arg = ARGV[8]                      -- time: test override, microseconds
--@include time: integer
--@include workspace: event_value, has_room, open_workspace, close_workspace

local task_key = scope .. ':ws:task'
local ws, answer = open_workspace(scope, 'transition', caller, limits, {':ws:task'}, now_arg)
if not ws then return answer end
-- Format: version, agent, state, JSON.
local stored = redis.call('HGET', task_key, id)
local version, from, before = 0, '', false
if stored then
  local number, _, state, at = string.match(stored, '^(%d+) (%S*) (%S+) ()')
  version, from, before = tonumber(number), state, string.sub(stored, at)
  ws.items, ws.bytes = ws.items - 1, ws.bytes - #id - #stored
end
local fine = expects == 'any' or (expects == 'absent' and not stored)
for i = 1, #rows do fine = fine or (expects == 'one' and rows[i].state == from) end
if not fine then return {'state', from, version} end
-- Versions continue after a clear, as those of paths.
local next_version = (stored and version or ws.floor) + 1
ws.top = math.max(ws.top, next_version)
local entry = integer(next_version) .. ' ' .. ws.agent .. ' ' .. to .. ' ' .. text
ws.items, ws.bytes = ws.items + 1, ws.bytes + #id + #entry
local fits, full = has_room(ws)
if not fits then return {'full', full} end
redis.call('HSET', task_key, id, entry)
local change = {id, next_version, to, from, event_value(text, ws.event_bytes), event_value(before, ws.event_bytes)}
return close_workspace(scope, ws, change, {next_version})
