#!lua flags=allow-oom
-- Ends a call of a provider: returns the reserved tokens that it did not use, counts those that it used beyond, and frees its
-- place. A failure counts towards the breaker, a success resets it.
-- status: settled | reopened (this success ended `broken`) | gone (the call had ended, or its lease long ago; nothing changed)
-- returns: status, then the end of the block in ms if this failure broke the provider, else 0
-- repeat: returns gone
local pool      = KEYS[1]            -- key: root of the pool's slot; of a shared provider, of the scope of its limit
local name      = ARGV[1]            -- str: limit
local call      = ARGV[2]            -- str: id of the call
local used      = tonumber(ARGV[3])  -- int: tokens that it used; -1: as many as it reserved
local tokens_us = tonumber(ARGV[4])  -- int: window of the tokens, microseconds; 0: none
local outcome   = ARGV[5]            -- str: ok | failed | unknown
local told      = ARGV[6]            -- str: who tells it, for a failure that breaks the provider
local shared    = ARGV[7]            -- str: 1 = pools share it, and learn of its states by themselves
local now_arg   = ARGV[8]            -- time: test override, microseconds
--@include time: now_us, integer
--@include notify: notify_supervisor
--@include blocked: end_trial, put_blocked
--@include provider: end_call, usage_ms

-- Failures in a row that break a provider, and the first and the longest time until a call tries it.
local most_fails, first_ms, longest_trial_ms = 5, 15000, 300000

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local usage_key, blocked_key = pool .. ':provider:usage:' .. name, pool .. ':blocked:' .. name
local counts = redis.call('HMGET', usage_key, 'fails', 'trips')
local fails, trips = tonumber(counts.fails) or 0, tonumber(counts.trips) or 0
local broken = redis.call('HEXISTS', blocked_key, 'broken') == 1
if not end_call(pool, name, call, used, tokens_us, now) then return {'gone', 0} end
local tried = broken and end_trial(pool, name, call)

if outcome == 'ok' then
  if fails > 0 or trips > 0 then redis.call('HDEL', usage_key, 'fails', tried and 'trips' or 'fails') end
  if tried then
    redis.call('HDEL', blocked_key, 'broken')
    if shared ~= '1' then notify_supervisor(pool, 'agents') end
    return {'reopened', 0}
  end
  return {'settled', 0}
end
-- Calls that began before the provider was broken tell nothing new.
if outcome ~= 'failed' or (broken and not tried) then
  if tried and shared ~= '1' then notify_supervisor(pool, 'agents') end
  return {'settled', 0}
end
fails = fails + 1
if fails < most_fails and not tried then
  redis.call('HSET', usage_key, 'fails', fails)
  redis.call('PEXPIRE', usage_key, integer(usage_ms))
  return {'settled', 0}
end
trips = math.min(trips + 1, 10)
redis.call('HSET', usage_key, 'fails', 0, 'trips', trips)
redis.call('PEXPIRE', usage_key, integer(usage_ms))
local until_ms = now_ms + math.min(longest_trial_ms, first_ms * 2 ^ (trips - 1))
put_blocked(pool, name, 'broken', until_ms, now_ms, told)
return {'settled', until_ms}
