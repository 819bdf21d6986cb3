#!lua flags=allow-oom
-- Removes workers without a heartbeat for the `alive_s` that they registered, agents without a worker for an hour, and versions of skills that no
-- worker had for a week; more than 1000 of these are removed earlier, the oldest first. A removed worker may be frozen or
-- cut off and return, so the active command for it stays as long as `silent:W`.
-- returns: the removed workers
-- repeat: returns none of them
local pool    = KEYS[1]             -- key: root of the pool's slot
local alive_s = tonumber(ARGV[1])   -- int: of a worker that registered none: it is alive for this long after a heartbeat
local limit   = tonumber(ARGV[2])   -- int: at most this many of each
local now_arg = ARGV[3]             -- time: test override, microseconds
--@include time: day_s, now_us, integer
--@include registry: find_agents, forget_worker

local now_ms = math.floor(now_us(now_arg) / 1000)
-- A worker may have a longer heartbeat than the caller: it is judged by its own.
local listed = redis.call('ZRANGE', pool .. ':workers', 0, 10 * limit - 1, 'WITHSCORES')
local silent = {}
for i = 1, #listed, 2 do
  local own_s = tonumber(redis.call('HGET', pool .. ':worker:' .. listed[i], 'alive_s') or nil) or alive_s
  if #silent < limit and now_ms - tonumber(listed[i + 1]) > own_s * 1000 then silent[#silent + 1] = listed[i] end
end
local lost = {}
for i = 1, #silent do
  if redis.call('EXISTS', pool .. ':worker:' .. silent[i]) == 0 then lost[#lost + 1] = silent[i] end
end
local listing = #lost > 0 and find_agents(pool, lost) or {}
for i = 1, #silent do
  forget_worker(pool, silent[i], now_ms, listing[silent[i]])
  redis.call('SET', pool .. ':silent:' .. silent[i], integer(now_ms), 'EX', 7 * day_s)
end
local unused = redis.call('ZRANGE', pool .. ':agents', '-inf', integer(now_ms - 3600000), 'BYSCORE', 'LIMIT', 0, limit)
for i = 1, #unused do
  local agent = unused[i]
  local inbox_key = pool .. ':inbox:' .. agent
  if redis.call('EXISTS', inbox_key) == 0 or redis.call('XLEN', inbox_key) == 0 then
    local agent_key = pool .. ':agent:' .. agent
    for skill in string.gmatch(redis.call('HGET', agent_key, 'skills') or '', '%S+') do
      redis.call('ZREM', pool .. ':skills:' .. skill, agent)
      redis.call('ZREM', pool .. ':room:' .. skill, agent)
    end
    redis.call('DEL', inbox_key, agent_key, agent_key .. ':workers', pool .. ':leases:' .. agent,
      pool .. ':offers:' .. agent)
    redis.call('ZREM', pool .. ':agents', agent)
  end
end
local left = redis.call('ZRANGE', pool .. ':versions', '-inf', integer(now_ms - 604800000), 'BYSCORE', 'LIMIT', 0, limit)
local surplus = math.min(limit, redis.call('ZCARD', pool .. ':versions') - 1000)
if #left < surplus then left = redis.call('ZRANGE', pool .. ':versions', 0, surplus - 1) end
for i = 1, #left do
  local agent, skill, digest = string.match(left[i], '^(%S+) ([^ =]+)=(%S+)$')
  if agent then redis.call('HDEL', pool .. ':versions:' .. skill, agent .. ' ' .. digest) end
end
if #left > 0 then redis.call('ZREM', pool .. ':versions', unpack(left)) end
return silent
