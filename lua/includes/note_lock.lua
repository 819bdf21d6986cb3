-- Keep a lock in the list of its scope until it lapses. A long list loses those that lapsed a minute ago.
--@include integer
local function note_lock(scope, lock, now_ms, ttl_ms)
  local locks_key = scope .. ':locks'
  local count = redis.call('ZCARD', locks_key)
  if count > 32 then redis.call('ZREMRANGEBYSCORE', locks_key, '-inf', integer(now_ms - 60000)) end
  redis.call('ZADD', locks_key, integer(now_ms + ttl_ms), lock)
  -- When the list goes after a day, the next renewal of each lock brings it back.
  if count == 0 or count > 32 then redis.call('PEXPIRE', locks_key, 86400000) end
end
