#!lua flags=allow-oom
-- Releases the lease of the leading supervisor, if the caller holds it.
-- returns: 1 (released) | 0 (the caller did not hold it)
-- repeat: returns 0
local pool = KEYS[1]  -- key: root of the pool's slot
local id   = ARGV[1]  -- str: supervisor

local leader_key = pool .. ':leader'
if redis.call('GET', leader_key) ~= id then return 0 end
redis.call('DEL', leader_key)
return 1
