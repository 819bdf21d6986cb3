#!lua flags=allow-oom
-- Releases the lease of the leading supervisor, if the caller holds it, and removes the caller from those that run.
-- returns: 1 (released) | 0 (the caller did not hold it)
-- repeat: returns 0
local pool    = KEYS[1]            -- key: root of the pool's slot
local id      = ARGV[1]            -- str: supervisor
local format  = tonumber(ARGV[2])  -- int: format of the supervisor
local version = ARGV[3]            -- str: version of the supervisor
--@include time: integer

local leader_key = pool .. ':leader'
local holder = redis.call('GET', leader_key)
redis.call('ZREM', pool .. ':supervisors', id .. ' ' .. integer(format) .. ' ' .. version)
if holder ~= id then return 0 end
redis.call('DEL', leader_key, pool .. ':leader:format')
return 1
