#!lua
-- Adds an agent to the session's directory for a lease, or removes it. Removes agents whose lease ran out.
-- returns: ok revision | duplicate, the same | fenced value | full what
-- repeat: returns duplicate
local scope    = KEYS[1]                      -- key: root of the session's slot
local caller   = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits   = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms window_ms ops items bytes events event_bytes parts json
local member   = ARGV[3]                      -- str: the agent
local text     = ARGV[4]                      -- str: its entry, JSON
local lease_ms = tonumber(ARGV[5])            -- int: lifetime of the entry; 0 removes it
local now_arg  = ARGV[6]                      -- time: test override, microseconds
--@include time: integer
--@include workspace: open_workspace, close_workspace

local dir_key, info_key = scope .. ':dir', scope .. ':dir:info'
local ws, answer = open_workspace(scope, 'join', caller, limits, {':dir', ':dir:info'}, now_arg)
if not ws then return answer end
local deadline = redis.call('ZSCORE', dir_key, member)
redis.call('HEXISTS', info_key, member)
local was_there = deadline and tonumber(deadline) > ws.now_ms
local outdated = redis.call('ZRANGE', dir_key, '-inf', integer(ws.now_ms), 'BYSCORE', 'LIMIT', 0, 100)
if lease_ms > 0 and not deadline and redis.call('ZCARD', dir_key) - #outdated >= ws.max_parts then
  return {'full', 'agents'}
end
local change = false
if lease_ms > 0 then
  redis.call('HSET', info_key, member, text)
  redis.call('ZADD', dir_key, integer(ws.now_ms + lease_ms), member)
  if not was_there then change = {member, true} end
elseif deadline then
  redis.call('ZREM', dir_key, member)
  redis.call('HDEL', info_key, member)
  if was_there then change = {member, false} end
end
for i = 1, #outdated do
  if outdated[i] ~= member then
    redis.call('ZREM', dir_key, outdated[i])
    redis.call('HDEL', info_key, outdated[i])
  end
end
return close_workspace(scope, ws, change, {})
