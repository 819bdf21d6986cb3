-- Let go of a lock that is nobody's any more. While somebody waits it is kept for half a second for whoever gets the one
-- token of the wake list: the server gives it to the one that has been blocked the longest, so nobody overtakes.
--@include integer
local function pass_lock(scope, lock, now_ms)
  local lock_key = scope .. ':' .. lock
  local waiters_key, wake_key, locks_key = lock_key .. ':waiters', lock_key .. ':wake', scope .. ':locks'
  local waiting = redis.call('ZCARD', waiters_key)
  if waiting > 0 then waiting = waiting - redis.call('ZREMRANGEBYSCORE', waiters_key, '-inf', integer(now_ms)) end
  if waiting == 0 then
    redis.call('ZREM', locks_key, lock)
    redis.call('DEL', lock_key, wake_key)
    return
  end
  redis.call('SET', lock_key, 'next', 'PX', 500)
  if redis.call('EXISTS', wake_key) == 0 then
    redis.call('LPUSH', wake_key, '1')
    redis.call('PEXPIRE', wake_key, 5000)
  end
end
