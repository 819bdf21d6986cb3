#!lua flags=allow-oom
-- Resumes a paused schedule at a fire time that the caller computed from the definition that it read.
-- status: done | already | unknown | changed (another definition: read again)
-- repeat: returns already
local pool    = KEYS[1]  -- key: root of the pool's slot
local name    = ARGV[1]  -- str: schedule
local before  = ARGV[2]  -- str: digest of the definition that the caller read
local next_ms = ARGV[3]  -- str: next fire time, or inf
--@include schedule: set_next_fire

local schedule_key = pool .. ':schedule:' .. name
local schedule = redis.call('HMGET', schedule_key, 'plan', 'paused', 'digest')
if not schedule.plan then return 'unknown' end
if not schedule.paused then return 'already' end
if schedule.digest ~= before then return 'changed' end
redis.call('HDEL', schedule_key, 'paused')
set_next_fire(pool, name, next_ms)
return 'done'
