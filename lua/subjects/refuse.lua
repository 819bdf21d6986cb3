#!lua flags=allow-oom
-- Refuses to note places of a person for a time, because the person is being erased.
-- returns: number of places that may hold text about the person
-- repeat: refuses for that time from now on
local scope   = KEYS[1]             -- key: root of the subject's slot
local for_ms  = tonumber(ARGV[1])   -- int: how long
local now_arg = ARGV[2]             -- time: test override, microseconds
--@include time: now_us
--@include erased: mark_erased

mark_erased(scope, 'all', math.floor(now_us(now_arg) / 1000), for_ms)
return redis.call('ZCARD', scope .. ':places')
