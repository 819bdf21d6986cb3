#!lua
-- Appends items to the buffer of an entity of a simulation, and drops the oldest beyond the cap.
-- returns: ok, number of items in the buffer, number of dropped ones | duplicate, the same
-- repeat: returns duplicate and the first call's result
local scope  = KEYS[1]                   -- key: root of the simulation's slot
local op     = ARGV[1]                   -- str: op id
local entity = ARGV[2]                   -- str: name of the entity, encoded
local rows   = cmsgpack.unpack(ARGV[3])  -- rows: text
local cap    = tonumber(ARGV[4])         -- int: items that the buffer keeps
local ttl_ms = tonumber(ARGV[5])         -- int: lifetime after the last change
--@include dedup: earlier_reply, store_reply

local kind_op = 'push:' .. op
local reply = earlier_reply(scope, kind_op)
if reply then return reply end
local buffer_key, texts = scope .. ':buf:' .. entity, {}
for i = 1, #rows do texts[i] = rows[i].text end
local length = redis.call('RPUSH', buffer_key, unpack(texts))
local dropped = math.max(length - cap, 0)
if dropped > 0 then redis.call('LTRIM', buffer_key, dropped, -1) end
redis.call('PEXPIRE', buffer_key, ttl_ms)
store_reply(scope, kind_op, 600000, 20000, {length - dropped, dropped})
return {'ok', length - dropped, dropped}
