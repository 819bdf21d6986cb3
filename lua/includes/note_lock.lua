-- Keep a lock in the list of its scope until it lapses; those that lapsed a minute ago leave the list.
--@include whole
local function note_lock(scope, lock, now_ms, ttl_ms)
  local locks_key = scope .. ':locks'
  redis.call('ZREMRANGEBYSCORE', locks_key, '-inf', whole(now_ms - 60000))
  redis.call('ZADD', locks_key, whole(now_ms + ttl_ms), lock)
  redis.call('PEXPIRE', locks_key, whole(math.max(ttl_ms, 86400000)))
end
