#!lua flags=allow-oom
-- Pauses a schedule until it is resumed.
-- status: done | already | unknown
-- repeat: returns already
local pool    = KEYS[1]  -- key: root of the pool's slot
local name    = ARGV[1]  -- str: schedule
local now_arg = ARGV[2]  -- time: test override, microseconds
--@include time: now_us, integer

local schedule_key, due_key = pool .. ':schedule:' .. name, pool .. ':schedules'
local schedule = redis.call('HMGET', schedule_key, 'plan', 'paused')
if not schedule.plan then return 'unknown' end
if schedule.paused then return 'already' end
redis.call('HSET', schedule_key, 'paused', integer(math.floor(now_us(now_arg) / 1000)))
redis.call('ZADD', due_key, 'inf', name)
return 'done'
