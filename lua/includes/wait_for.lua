-- Note that somebody waits for a lock, at most so long: whoever releases it keeps it for one of those who wait.
--@include integer
local function wait_for(lock_key, nonce, now_ms, wait_ms)
  local waiters_key = lock_key .. ':waiters'
  redis.call('ZADD', waiters_key, integer(now_ms + wait_ms), nonce)
  redis.call('PEXPIRE', waiters_key, integer(wait_ms + 60000), 'NX')
  redis.call('PEXPIRE', waiters_key, integer(wait_ms + 60000), 'GT')
end
