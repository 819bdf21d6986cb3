#!lua flags=no-writes
-- Reads one lock, or all locks of a scope.
-- returns: per held lock: name, value, ms until it lapses, number of waiters
-- repeat: reads again
local scope   = KEYS[1]            -- key: root of the scope's slot
local lock    = ARGV[1]            -- str: one lock; empty: all
local limit   = tonumber(ARGV[2])  -- int: at most this many (500)
local now_arg = ARGV[3]            -- time: test override, microseconds
--@include time: now_us, integer

local now_ms = math.floor(now_us(now_arg) / 1000)
local locks_key = scope .. ':locks'
local found, answers = {lock}, {}
if lock == '' then
  found = redis.call('ZRANGE', locks_key, integer(now_ms), '+inf', 'BYSCORE', 'LIMIT', 0, limit)
end
for i = 1, #found do
  local lock_key = scope .. ':' .. found[i]
  local waiters_key, line_key = lock_key .. ':waiters', lock_key .. ':line'
  local holder = redis.call('GET', lock_key)
  if holder then
    answers[#answers + 1] = found[i]
    answers[#answers + 1] = holder
    answers[#answers + 1] = redis.call('PTTL', lock_key)
    answers[#answers + 1] = redis.call('ZCOUNT', waiters_key, integer(now_ms), '+inf') + redis.call('ZCARD', line_key)
  end
end
return answers
