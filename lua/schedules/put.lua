#!lua
-- Store a schedule, in place of the one that the caller saw.
-- status: ok | same (stored already) | changed (another than the caller saw: look again)
-- repeat: answers same
local pool    = KEYS[1]             -- key: root of the pool's slot
local name    = ARGV[1]             -- str: of the schedule
local plan    = ARGV[2]             -- str: its definition, JSON
local digest  = ARGV[3]             -- str: of the definition
local before  = ARGV[4]             -- str: digest that the caller saw; empty: there was none
local next_ms = ARGV[5]             -- str: next fire time, or inf; empty: it keeps its own, and what intervals count from
local anchor  = ARGV[6]             -- str: where intervals count from, ms
--@include schedule: set_next_fire

local schedule_key, due_key = pool .. ':schedule:' .. name, pool .. ':schedules'
local schedule = redis.call('HMGET', schedule_key, 'digest', 'next', 'paused')
if schedule.digest == digest then return 'same' end
if (schedule.digest or '') ~= before then return 'changed' end
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
