#!lua flags=allow-oom
-- Stores that Redis has lost writes which it had confirmed. The record stays for a day.
-- returns: 1 (stored) | 0 (known)
-- repeat: returns 0
local pool     = KEYS[1]            -- key: root of the pool's slot
local report   = ARGV[1]            -- str: id of the report
local observer = ARGV[2]            -- str: client or supervisor
local from_ms  = ARGV[3]            -- str: a lost write was confirmed at this time; no earlier one is known
local submits  = tonumber(ARGV[4])  -- int: submits that are known to be lost
local now_arg  = ARGV[5]            -- time: test override, microseconds
--@include time: day_s, now_us, integer

local most = 200
local losses_key, durability_key = pool .. ':losses', pool .. ':durability'
if redis.call('HEXISTS', losses_key, report) == 1 then return 0 end
local noticed = integer(math.floor(now_us(now_arg) / 1000))
if redis.call('HLEN', losses_key) < most then
  redis.call('HSET', losses_key, report, observer .. ' ' .. noticed .. ' ' .. from_ms .. ' ' .. integer(submits))
  redis.call('EXPIRE', losses_key, day_s)
end
redis.call('HINCRBY', durability_key, 'losses:' .. observer, 1)
redis.call('HSET', durability_key, 'losses:noticed_ms', noticed)
if submits > 0 then redis.call('HINCRBY', durability_key, 'lost:' .. observer, submits) end
return 1
