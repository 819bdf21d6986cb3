#!lua flags=allow-oom
-- Give up the lease of the leading supervisor, if it is ours.
-- answers: 1 resigned | 0 it was not ours
-- repeat: 0
local pool = KEYS[1]  -- key: root of the pool's slot
local id   = ARGV[1]  -- str: supervisor

local leader_key = pool .. ':leader'
if redis.call('GET', leader_key) ~= id then return 0 end
redis.call('DEL', leader_key)
return 1
