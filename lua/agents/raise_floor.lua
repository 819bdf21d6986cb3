#!lua flags=allow-oom
-- Raises the floor of a pool: the lowest format of a program that it admits. It never falls.
-- returns: the floor before, or empty
-- repeat: changes nothing
local pool   = KEYS[1]            -- key: root of the pool's slot
local format = tonumber(ARGV[1])  -- int: the new floor
--@include time: integer
--@include format: read_floor

local floor = read_floor(pool)
if format > (tonumber(floor) or 0) then redis.call('SET', pool .. ':format', integer(format)) end
return floor
