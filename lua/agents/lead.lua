#!lua flags=allow-oom
-- Acquires or renews the lease of the leading supervisor.
-- returns: 1 (the caller leads) | 0 (another supervisor leads)
-- repeat: renews the lease
local pool     = KEYS[1]  -- key: root of the pool's slot
local id       = ARGV[1]  -- str: supervisor
local lease_ms = ARGV[2]  -- str: duration of the lease

local leader_key = pool .. ':leader'
local holder = redis.call('GET', leader_key)
if holder and holder ~= id then return 0 end
redis.call('SET', leader_key, id, 'PX', lease_ms)
return 1
