#!lua flags=allow-oom
-- Deletes a schedule; keeps the tasks that it submitted.
-- status: deleted | unknown
-- repeat: returns unknown
local pool = KEYS[1]  -- key: root of the pool's slot
local name = ARGV[1]  -- str: schedule

local known = redis.call('DEL', pool .. ':schedule:' .. name)
redis.call('ZREM', pool .. ':schedules', name)
return known == 1 and 'deleted' or 'unknown'
