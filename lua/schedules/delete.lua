#!lua flags=allow-oom
-- Delete a schedule. Tasks that it has submitted stay.
-- status: deleted | unknown
-- repeat: answers unknown
local pool = KEYS[1]  -- key: root of the pool's slot
local name = ARGV[1]  -- str: of the schedule

local known = redis.call('DEL', pool .. ':schedule:' .. name)
redis.call('ZREM', pool .. ':schedules', name)
return known == 1 and 'deleted' or 'unknown'
