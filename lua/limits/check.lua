#!lua flags=allow-oom
-- Takes room in a sliding window if enough is free; a refused call takes none.
-- returns: allowed | duplicate | refused, then the used room, and us until a refused call would fit
-- repeat: returns duplicate; an op takes room once
local scope     = KEYS[1]            -- key: root of the limit's slot
local op        = ARGV[1]            -- str: op id
local most      = tonumber(ARGV[2])  -- int: room of a window
local window_us = tonumber(ARGV[3])  -- int: length of a window, microseconds
local cost      = tonumber(ARGV[4])  -- int: room to take
local now_arg   = ARGV[5]            -- time: test override, microseconds
--@include time: now_us, integer

-- One key per length, so that two windows of one name do not trim each other.
local window_key = scope .. ':window:' .. integer(window_us / 1000)
local now = now_us(now_arg)
-- A clock that steps back reopens no window.
local newest = redis.call('ZRANGE', window_key, -1, -1, 'WITHSCORES')[2]
if newest and tonumber(newest) > now then now = tonumber(newest) end
local outside = integer(now - window_us)
local used = redis.call('ZCOUNT', window_key, '(' .. outside, '+inf')
local before = redis.call('ZSCORE', window_key, op .. ':1')
if before and tonumber(before) > now - window_us then return {'duplicate', used, 0} end
if used + cost > most then
  -- The call fits when this many of the oldest have left the window.
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
