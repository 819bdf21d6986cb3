#!lua flags=allow-oom
-- Removes places that hold no more text about a person.
-- returns: number of places that remain
-- repeat: removes nothing
local scope = KEYS[1]                    -- key: root of the subject's slot
local rows  = cmsgpack.unpack(ARGV[1])   -- rows: place

local places_key = scope .. ':places'
for i = 1, #rows do redis.call('ZREM', places_key, rows[i].place) end
return redis.call('ZCARD', places_key)
