#!lua flags=allow-oom
-- Take room in a window that slides, if there is enough; what is refused takes none.
-- answers: allowed | duplicate | refused, then what is taken in the window, and us until the refused would fit
-- repeat: answers duplicate; the same op takes room once
local scope     = KEYS[1]            -- key: root of the limit's slot
local op        = ARGV[1]            -- str: id of the call
local most      = tonumber(ARGV[2])  -- int: room in every window
local window_us = tonumber(ARGV[3])  -- int: its length, microseconds
local cost      = tonumber(ARGV[4])  -- int: how much is taken
local now_arg   = ARGV[5]            -- time: test override, microseconds
--@include time: now_us, integer

-- Each length has a key of its own, so that two windows of one name do not trim one another.
local window_key = scope .. ':window:' .. integer(window_us / 1000)
local now = now_us(now_arg)
-- A clock that was set back opens no window twice.
local newest = redis.call('ZRANGE', window_key, -1, -1, 'WITHSCORES')[2]
if newest and tonumber(newest) > now then now = tonumber(newest) end
local outside = integer(now - window_us)
local used = redis.call('ZCOUNT', window_key, '(' .. outside, '+inf')
local before = redis.call('ZSCORE', window_key, op .. ':1')
if before and tonumber(before) > now - window_us then return {'duplicate', used, 0} end
if used + cost > most then
  -- So many of the oldest must have left.
  local leaves = redis.call('ZRANGE', window_key, '(' .. outside, '+inf', 'BYSCORE',
    'LIMIT', used + cost - most - 1, 1, 'WITHSCORES')[2]
  return {'refused', used, tonumber(leaves) + window_us - now}
end
local taken = {}
for i = 1, cost do
  taken[i * 2 - 1] = integer(now)
  taken[i * 2] = op .. ':' .. i
end
redis.call('ZADD', window_key, unpack(taken))
redis.call('ZREMRANGEBYSCORE', window_key, '-inf', outside)
redis.call('PEXPIRE', window_key, integer(math.ceil(window_us / 1000) + 1000))
return {'allowed', used + cost, 0}
