#!lua flags=allow-oom
-- Raises the floor of a pool: the lowest format of a program that it admits. It never falls.
-- returns: the floor
-- repeat: changes nothing
local pool   = KEYS[1]            -- key: root of the pool's slot
local format = tonumber(ARGV[1])  -- int: the new floor
--@include format: raise_floor

return raise_floor(pool, format)
