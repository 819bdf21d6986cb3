#!lua
-- Adds to the value of a member on today's board; the day is that of the server's clock in UTC.
-- returns: counted day value | duplicate, the same | full (too many members)
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]            -- key: root of the board's slot
local op      = ARGV[1]            -- str: op id
local member  = ARGV[2]            -- str: member
local by      = tonumber(ARGV[3])  -- int: amount
local most    = tonumber(ARGV[4])  -- int: maximum members of a day
local now_arg = ARGV[5]            -- time: test override, microseconds
--@include time: day_s, now_us, utc_day, integer
--@include dedup: earlier_reply, store_reply

local reply = earlier_reply(scope, op)
if reply then return reply end
local day = utc_day(now_us(now_arg))
local day_key = scope .. ':day:' .. day
if not redis.call('ZSCORE', day_key, member) and redis.call('ZCARD', day_key) >= most then return {'full'} end
local count = integer(tonumber(redis.call('ZINCRBY', day_key, integer(by), member)))
redis.call('EXPIRE', day_key, 8 * day_s)
store_reply(scope, op, 600000, 20000, {day, count})
return {'counted', day, count}
