#!lua flags=allow-oom
-- Counts the slots of a worker as 0, because the signature of its registration is missing or wrong. Its record tells its
-- heartbeats so, and later registrations offer 0 slots too.
-- status: ok | known (refused before, or not in the registry)
-- repeat: returns known
local pool    = KEYS[1]  -- key: root of the pool's slot
local worker  = ARGV[1]  -- str: worker
local now_arg = ARGV[2]  -- time: test override, microseconds
--@include time: now_us
--@include registry: read_offer, update_offer, notify_of_agent

local now_ms = math.floor(now_us(now_arg) / 1000)
local worker_key = pool .. ':worker:' .. worker
if redis.call('EXISTS', worker_key) == 0 then return {'known'} end
local changed = redis.call('HSETNX', worker_key, 'refused', '1') == 1
local fields = redis.call('HKEYS', worker_key)
for i = 1, #fields do
  local agent = string.match(fields[i], '^agent:(.*)$')
  local before = agent and read_offer(pool, agent, worker)
  -- A row that was written past `register` is set back each time.
  if before and before.slots > 0 then
    changed = true
    redis.call('HSET', pool .. ':agent:' .. agent .. ':workers', worker, '0 ' .. before.wish .. ' ' .. before.skills)
    notify_of_agent(pool, agent, update_offer(pool, agent, worker, before, now_ms))
  end
end
return {changed and 'ok' or 'known'}
