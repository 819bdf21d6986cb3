#!lua flags=allow-oom
-- Counts durable submits. Its write is the last one of a connection before the wait for the disk or for a replica.
-- returns: the new value of the last counter
-- repeat: counts again
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: counter count

local value = 0
for i = 1, #rows do
  value = redis.call('HINCRBY', pool .. ':durability', rows[i].counter, rows[i].count)
end
return value
