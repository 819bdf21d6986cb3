#!lua flags=allow-oom
-- Corrects the bytes of up to 500 queues by what a scan found, and sums those of the pool.
-- returns: bytes of the pool
-- repeat: adds again; the next scan corrects that
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: queue change
--@include time: integer
--@include key: has_type
--@include held_bytes: add_bytes

local bytes_key, changes, total = pool .. ':queues:bytes', {}, 0
-- The scan reports a key of another type.
if not has_type({}, bytes_key, 'hash') then return 0 end
for i = 1, #rows do changes[rows[i].queue] = rows[i].change end
add_bytes(pool, changes)
local names, numbers = redis.call('HKEYS', bytes_key), redis.call('HVALS', bytes_key)
for i = 1, #names do
  if names[i] ~= '*' then total = total + (tonumber(numbers[i]) or 0) end
end
if total > 0 then redis.call('HSET', bytes_key, '*', integer(total)) else redis.call('HDEL', bytes_key, '*') end
return total
