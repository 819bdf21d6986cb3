#!lua flags=allow-oom
-- Admits programs to a restored pool.
-- returns: 1 | 0 (a later run of the restore has replaced this one, or has ended)
-- repeat: returns 1
local pool  = KEYS[1]  -- key: root of the pool's slot
local mark  = ARGV[1]  -- str: mark of the run
local floor = ARGV[2]  -- str: lowest format that the pool admits
--@include restoring: goes_on

local format_key = pool .. ':format'
if redis.call('GET', format_key) == floor then return 1 end
if not goes_on(pool, mark) then return 0 end
redis.call('SET', format_key, floor)
return 1
