#!lua flags=allow-oom
-- Takes a named lock.
-- returns: taken, value (fence:nonce:owner)
--          held, value of the holder (`next`: kept for a waiter), ms until it lapses, then the task that the caller must
--          wake ('': none), because the lock lapsed and tasks wait in its line
-- repeat: the same nonce gets the same fence and a full lease
local scope   = KEYS[1]            -- key: root of the scope's slot
local lock    = ARGV[1]            -- str: lock, as lock:NAME
local nonce   = ARGV[2]            -- str: random, identifies this request
local owner   = ARGV[3]            -- str: name of the holder, shown to people
local ttl_ms  = tonumber(ARGV[4])  -- int: duration of the lease
local wait_ms = tonumber(ARGV[5])  -- int: the caller waits this long if the lock is held; 0: not at all
local woken   = ARGV[6]            -- str: 1 = it is the caller's turn: it has the hint, or the token of the wake list
local listens = ARGV[7]            -- str: 1 = the caller listens for the hint
local now_arg = ARGV[8]            -- time: test override, microseconds
--@include time: now_us
--@include lock: next_fence, nonce_of, list_lock, wait_for, withdraw, put_value, pass_lock

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local lock_key = scope .. ':' .. lock
local waiters_key, wake_key = lock_key .. ':waiters', lock_key .. ':wake'
local holder = redis.call('GET', lock_key)
local waited = redis.call('EXISTS', waiters_key, wake_key) > 0
if holder and nonce_of(holder) == nonce then
  redis.call('PEXPIRE', lock_key, ttl_ms)
  list_lock(scope, lock, now_ms, ttl_ms)
  return {'taken', holder}
end
local wake = ''
if not holder and lock == 'exec' and redis.call('EXISTS', lock_key .. ':line') == 1 then
  -- The lock lapsed, so that no release woke the first task of the line.
  wake = pass_lock(scope, lock, now_ms, true)
  holder = 'next:' .. wake
end
if holder and not (holder == 'next' and woken == '1') then
  if wait_ms > 0 then wait_for(lock_key, nonce, now, wait_ms, listens) end
  return {'held', holder, redis.call('PTTL', lock_key), wake}
end
local value = next_fence(scope, now) .. ':' .. nonce .. ':' .. owner
put_value(lock_key, holder, value, ttl_ms)
list_lock(scope, lock, now_ms, ttl_ms)
if waited then
  withdraw(lock_key, nonce)
  redis.call('DEL', wake_key)
end
return {'taken', value}
