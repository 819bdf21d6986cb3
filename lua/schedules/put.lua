#!lua
-- Stores a schedule, if the stored definition is the one that the caller read.
-- status: ok | same (already stored) | changed (another definition: read again) | full (the pool has as many as it may)
-- repeat: returns same
local pool    = KEYS[1]             -- key: root of the pool's slot
local name    = ARGV[1]             -- str: schedule
local plan    = ARGV[2]             -- str: its definition, JSON
local digest  = ARGV[3]             -- str: digest of the definition
local before  = ARGV[4]             -- str: digest that the caller read; empty: none
local next_ms = ARGV[5]             -- str: next fire time, or inf; empty: keeps time and anchor
local anchor  = ARGV[6]             -- str: start of intervals, ms
local most    = tonumber(ARGV[7])   -- int: schedules of the pool
--@include schedule: set_next_fire

local schedule_key, due_key = pool .. ':schedule:' .. name, pool .. ':schedules'
local schedule = redis.call('HMGET', schedule_key, 'digest', 'next', 'paused')
if schedule.digest == digest then return 'same' end
if (schedule.digest or '') ~= before then return 'changed' end
if not schedule.digest and redis.call('ZCARD', due_key) >= most then return 'full' end
redis.call('HSET', schedule_key, 'plan', plan, 'digest', digest)
if next_ms == '' then return 'ok' end
redis.call('HSET', schedule_key, 'anchor', anchor)
if schedule.paused then
  redis.call('HSET', schedule_key, 'next', next_ms)
  redis.call('ZADD', due_key, 'inf', name)
else
  set_next_fire(pool, name, next_ms)
end
return 'ok'
