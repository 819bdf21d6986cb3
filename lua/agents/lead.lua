#!lua flags=allow-oom
-- Take or keep the lease of the leading supervisor.
-- answers: 1 leads | 0 somebody else does
-- repeat: keeps it
local pool     = KEYS[1]  -- key: root of the pool's slot
local id       = ARGV[1]  -- str: supervisor
local lease_ms = ARGV[2]  -- str: the lease lasts so long

local leader_key = pool .. ':leader'
local holder = redis.call('GET', leader_key)
if holder and holder ~= id then return 0 end
redis.call('SET', leader_key, id, 'PX', lease_ms)
return 1
