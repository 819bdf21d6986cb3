#!lua flags=allow-oom
-- Empties a session's workspace: document, states, logs, sets, scratches, directory and directives. On request removes
-- the stored events too, which hold previous values. Versions, revisions and event ids continue, so that no reader
-- mistakes new values for old ones.
-- returns: ok revision | duplicate, the same | fenced value | occupied value ms
-- repeat: returns duplicate
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms window_ms ops items bytes events event_bytes parts json
local events  = tonumber(ARGV[3])            -- int: 1 removes the stored events, 0 keeps them
local now_arg = ARGV[4]                      -- time: test override, microseconds
--@include workspace: open_workspace, close_workspace

local parts_key = scope .. ':ws:parts'
local ws, answer = open_workspace(scope, 'clear', caller, limits, {}, now_arg)
if not ws then return answer end
local keys = {scope .. ':ws:doc', scope .. ':ws:task', scope .. ':dir', scope .. ':dir:info', scope .. ':ws:json'}
local parts, numbers = redis.call('HKEYS', parts_key), redis.call('HVALS', parts_key)
for i = 1, #parts do
  keys[#keys + 1] = scope .. ':' .. parts[i]
  ws.tail = math.max(ws.tail, tonumber(numbers[i]))
end
ws.floor, ws.items, ws.bytes = math.max(ws.floor, ws.top), 0, 0
redis.call('UNLINK', parts_key, unpack(keys))
if events == 1 then
  -- The stream stays, because it has the highest id that was issued.
  redis.call('XTRIM', scope .. ':ws:ev', 'MAXLEN', 0)
  ws.places, ws.placed = {}, true
end
return close_workspace(scope, ws, {events == 1 and 'events' or 'all'}, {})
