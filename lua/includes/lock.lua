-- Locks of a scope.
--@include time: integer

-- The guard of shared state: nil when a lock holds just this value; else what it holds, empty when it holds nothing. A
-- script that changes state asks before its first write, and changes nothing unless the answer is nil.
local function fenced_by(scope, lock, value)
  local lock_key = scope .. ':' .. lock
  local present = redis.call('GET', lock_key)
  if present == value then return nil end
  return present or ''
end

-- The next fence number of a scope: higher than every one before it, also when the counter was lost.
local function next_fence(scope, now)
  local fence_key = scope .. ':fence'
  local number = math.max(tonumber(redis.call('GET', fence_key) or 0), now) + 1
  redis.call('SET', fence_key, integer(number), 'EX', 2592000)
  return integer(number)
end

-- The random part of a lock's value: of a named lock it comes second, of an execution lock last.
local function nonce_of(value)
  return string.match(value, '^%d+:(%x+):') or string.match(value, ':(%x+)$')
end

-- Keep a lock in the list of its scope until it lapses. A long list loses those that lapsed a minute ago.
local function list_lock(scope, lock, now_ms, ttl_ms)
  local locks_key = scope .. ':locks'
  local count = redis.call('ZCARD', locks_key)
  if count > 32 then redis.call('ZREMRANGEBYSCORE', locks_key, '-inf', integer(now_ms - 60000)) end
  redis.call('ZADD', locks_key, integer(now_ms + ttl_ms), lock)
  -- When the list goes after a day, the next renewal of each lock brings it back.
  if count == 0 or count > 32 then redis.call('PEXPIRE', locks_key, 86400000) end
end

-- Note that somebody waits for a lock, at most so long: whoever releases it keeps it for one of those who wait.
local function wait_for(lock_key, nonce, now_ms, wait_ms)
  local waiters_key = lock_key .. ':waiters'
  redis.call('ZADD', waiters_key, integer(now_ms + wait_ms), nonce)
  redis.call('PEXPIRE', waiters_key, integer(wait_ms + 60000), 'NX')
  redis.call('PEXPIRE', waiters_key, integer(wait_ms + 60000), 'GT')
end

-- Let go of a lock that is nobody's any more. While somebody waits it is kept for half a second for whoever gets the one
-- token of the wake list: the server gives it to the one that has been blocked the longest, so nobody overtakes.
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

-- End an ownership of a lock: what belongs to this one owner goes with it, and the lock goes to the next.
local function unlock(scope, lock, now_ms)
  local lock_key = scope .. ':' .. lock
  if string.sub(lock, 1, 4) == 'exec' then
    local fence_key, awaited_key = lock_key .. ':fence', lock_key .. ':awaited'
    redis.call('HDEL', fence_key, 'live')
    redis.call('DEL', awaited_key)
  end
  pass_lock(scope, lock, now_ms)
end
