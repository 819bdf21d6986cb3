#!lua
-- Moves an entry of an agent's scratch into the shared document, or to the end of a log.
-- targets: path | log
-- returns: ok revision, version | duplicate, the same | fenced value | occupied value ms | missing | full what
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms window_ms ops items bytes events event_bytes parts json
local owner   = ARGV[3]                      -- str: the agent that owns the scratch
local entry   = ARGV[4]                      -- str: key in the scratch
local target  = ARGV[5]                      -- str: path or log
local name    = ARGV[6]                      -- str: the path, or the encoded name of the log
local cap     = tonumber(ARGV[7])            -- int: maximum items of the log
local now_arg = ARGV[8]                      -- time: test override, microseconds
--@include time: integer
--@include workspace: split_value, event_value, has_room, set_json_path, open_workspace, close_workspace, extend_log

local kv_key, doc_key = scope .. ':agent:' .. owner .. ':kv', scope .. ':ws:doc'
local ws, answer = open_workspace(scope, 'publish', caller, limits,
  {target == 'path' and ':ws:doc' or ':ws:log:' .. name, ':agent:' .. owner .. ':kv'}, now_arg)
if not ws then return answer end
local own = redis.call('HGET', kv_key, entry)
if not own then return {'missing'} end
local _, _, text = split_value(own)
ws.items, ws.bytes = ws.items - 1, ws.bytes - #entry - #own

local version, change
if target == 'log' then
  local last, dropped, extended = extend_log(scope, ws, name, {text}, cap)
  if not last then return {'full', dropped} end
  version, change = last, {'log', unpack(extended)}
else
  local stored = redis.call('HGET', doc_key, name)
  local number, _, before = split_value(stored)
  version = number > 0 and number + 1 or ws.floor + 1
  ws.top = math.max(ws.top, version)
  local value = integer(version) .. ' ' .. ws.agent .. ' ' .. text
  if stored then ws.items, ws.bytes = ws.items - 1, ws.bytes - #name - #stored end
  ws.items, ws.bytes = ws.items + 1, ws.bytes + #name + #value
  local fits, full = has_room(ws)
  if not fits then return {'full', full} end
  if ws.json then set_json_path(scope, name, text) end
  redis.call('HSET', doc_key, name, value)
  change = {'path', name, version, event_value(text, ws.event_bytes), event_value(before, ws.event_bytes)}
end
redis.call('HDEL', kv_key, entry)
return close_workspace(scope, ws, change, {version})
