-- Locks of a scope.
--@include time: day_s, integer

-- Returns whether a released lock is kept for a waiter (`next`), or for a task of its line (`next:TASK:POOL`).
local function is_reserved(value)
  return string.sub(value, 1, 4) == 'next'
end

-- Returns the task of the line that a released lock is kept for, as `TASK:POOL`.
local function reserved_task(value)
  return value and string.match(value, '^next:(.+)$')
end

-- Returns nil when a lock holds this value, else the lock's value ('': free). A script that changes shared state calls
-- it before its first write, and writes only on nil.
local function fenced_by(scope, lock, value)
  local lock_key = scope .. ':' .. lock
  local present = redis.call('GET', lock_key)
  if present == value then return nil end
  return present or ''
end

-- Returns the holder of the scope's exclusive lock: nil when it is free, or kept for a waiter.
local function exclusive_holder(scope)
  local exclusive_key = scope .. ':exec'
  local holder = redis.call('GET', exclusive_key)
  if holder and not is_reserved(holder) then return holder end
end

-- Returns nil when the caller may change the scope, else the reply: `fenced` and the value of its lock, or `occupied`,
-- the value of the exclusive lock and the ms that it has left. Scripts call it before their first write. A change that
-- finds no holder ends the right of one whose lock lapsed to take the lock again, because it no longer excluded changes.
--@row caller: op lock token agent exclusive
local function refuse_change(scope, caller)
  if caller.lock ~= '' then
    local owner = fenced_by(scope, caller.lock, caller.token)
    if owner then return {'fenced', owner} end
    if caller.lock == 'exec' then return nil end
  end
  local holder = exclusive_holder(scope)
  if not holder then
    redis.call('HDEL', scope .. ':exec:fence', 'live')
  elseif holder ~= caller.exclusive then
    return {'occupied', holder, redis.call('PTTL', scope .. ':exec')}
  end
end

-- Returns the next fence number of a scope, higher than all before, even when the counter was lost.
local function next_fence(scope, now)
  local fence_key = scope .. ':fence'
  local number = math.max(tonumber(redis.call('GET', fence_key) or 0), now) + 1
  redis.call('SET', fence_key, integer(number), 'EX', 30 * day_s)
  return integer(number)
end

-- Gives a lock to its new owner. A free lock is taken by SET NX.
local function put_value(lock_key, present, value, ttl_ms)
  if present then
    redis.call('SET', lock_key, value, 'PX', ttl_ms)
  else
    redis.call('SET', lock_key, value, 'PX', ttl_ms, 'NX')
  end
end

-- Returns the fence of the attempt that was the last to take an execution lock; nil if that attempt released it. One hash
-- per scope holds the highest generation of each task, behind it the fence while the attempt holds `exec:TASK`, and in
-- `live` the fence of the holder of `exec`.
local function live_fence(scope, lock)
  local fence_key = scope .. ':exec:fence'
  if lock == 'exec' then return redis.call('HGET', fence_key, 'live') end
  local held = redis.call('HGET', fence_key, string.sub(lock, 6))
  return held and string.match(held, ' (%d+)$')
end

-- Returns the nonce of a lock's value: the second part in a named lock, the last in an execution lock.
local function nonce_of(value)
  return string.match(value, '^%d+:(%x+):') or string.match(value, ':(%x+)$')
end

-- Lists a lock in its scope until it lapses. A list of more than 32 drops locks that lapsed a minute ago.
local function list_lock(scope, lock, now_ms, ttl_ms)
  local locks_key = scope .. ':locks'
  local count = redis.call('ZCARD', locks_key)
  if count > 32 then redis.call('ZREMRANGEBYSCORE', locks_key, '-inf', integer(now_ms - 60000)) end
  redis.call('ZADD', locks_key, integer(now_ms + ttl_ms), lock)
  -- When the list goes after a day, the next renewal of each lock brings it back.
  if count == 0 or count > 32 then redis.call('PEXPIRE', locks_key, 1000 * day_s) end
end

-- Registers a waiter of a lock for a time, so that a release keeps the lock for a waiter. Those that listen have their
-- turns in order of arrival.
local function wait_for(lock_key, nonce, now, wait_ms, listens)
  local waiters_key, order_key = lock_key .. ':waiters', lock_key .. ':order'
  redis.call('ZADD', waiters_key, integer(math.floor(now / 1000) + wait_ms), nonce)
  if listens == '1' then redis.call('ZADD', order_key, 'NX', integer(now), nonce) end
  for _, key in ipairs({waiters_key, order_key}) do
    redis.call('PEXPIRE', key, integer(wait_ms + 60000), 'NX')
    redis.call('PEXPIRE', key, integer(wait_ms + 60000), 'GT')
  end
end

-- Withdraws a waiter of a lock; returns whether it waited.
local function withdraw(lock_key, nonce)
  redis.call('ZREM', lock_key .. ':order', nonce)
  return redis.call('ZREM', lock_key .. ':waiters', nonce) == 1
end

-- Tells the first of the listening waiters that it has its turn; returns whether one received it. Those that no longer listen
-- lose their places: they have died, or ask again. One that receives it must ask within a second, or it is no longer a waiter.
local function call_first(lock_key, now_ms)
  local order_key, waiters_key = lock_key .. ':order', lock_key .. ':waiters'
  while true do
    local nonce = redis.call('ZRANGE', order_key, 0, 0)[1]
    if not nonce then return false end
    local channel_key = lock_key .. ':wake:' .. nonce
    if not redis.acl_check_cmd('SPUBLISH', channel_key, '1') then return false end
    redis.call('ZREM', order_key, nonce)
    if redis.call('ZSCORE', waiters_key, nonce) then
      if redis.call('SPUBLISH', channel_key, '1') > 0 then
        redis.call('ZADD', waiters_key, integer(now_ms + 1000), nonce)
        return true
      end
      redis.call('ZREM', waiters_key, nonce)
    end
  end
end

-- Frees a lock that has no owner. With waiters, keeps the lock for half a second for the one that has waited longest, so
-- that no caller overtakes: it gets a hint, or, if it does not listen, the one token of the wake list. Of both kinds, one
-- is chosen by chance. The exclusive lock also has a line of tasks: it is kept for 5 s for the first of them, which the
-- caller must wake; returns that task as `TASK:POOL`, else ''. Waiters go first, except after one of them held the lock.
local function pass_lock(scope, lock, now_ms, after_waiter)
  local lock_key = scope .. ':' .. lock
  local waiters_key, wake_key, locks_key = lock_key .. ':waiters', lock_key .. ':wake', scope .. ':locks'
  local line_key = lock_key .. ':line'
  local waiting = redis.call('ZCARD', waiters_key)
  if waiting > 0 then waiting = waiting - redis.call('ZREMRANGEBYSCORE', waiters_key, '-inf', integer(now_ms)) end
  local first = lock == 'exec' and redis.call('ZRANGE', line_key, 0, 0)[1]
  if first and (waiting == 0 or after_waiter) then
    redis.call('SET', lock_key, 'next:' .. first, 'PX', 5000)
    redis.call('HSET', scope .. ':exec:fence', 'kept', integer(now_ms))
    redis.call('PEXPIRE', scope .. ':exec:fence', 1000 * day_s)
    redis.call('ZREM', line_key, first)
    redis.call('DEL', wake_key)
    return first
  end
  if waiting > 0 then
    local silent = waiting - redis.call('ZCARD', lock_key .. ':order')
    if silent <= 0 or now_ms % 2 == 0 then
      if call_first(lock_key, now_ms) then
        redis.call('SET', lock_key, 'next', 'PX', 500)
        return ''
      end
      waiting = redis.call('ZCARD', waiters_key)
    end
  end
  if waiting == 0 then
    redis.call('ZREM', locks_key, lock)
    redis.call('DEL', lock_key, wake_key)
    return ''
  end
  redis.call('SET', lock_key, 'next', 'PX', 500)
  if redis.call('EXISTS', wake_key) == 0 then
    redis.call('LPUSH', wake_key, '1')
    redis.call('PEXPIRE', wake_key, 5000)
  end
  return ''
end

-- Ends an ownership of a lock and passes the lock on; returns the task to wake, as `pass_lock`.
local function unlock(scope, lock, value, now_ms)
  local lock_key = scope .. ':' .. lock
  if string.sub(lock, 1, 4) == 'exec' then
    local fence_key, awaited_key, task = scope .. ':exec:fence', lock_key .. ':awaited', string.sub(lock, 6)
    if task == '' then
      redis.call('HDEL', fence_key, 'live')
    else
      local held = redis.call('HGET', fence_key, task)
      if held then redis.call('HSET', fence_key, task, string.match(held, '^%d+')) end
    end
    redis.call('DEL', awaited_key)
  end
  -- A task came from the line, any other owner from the waiters.
  return pass_lock(scope, lock, now_ms, not string.match(value, '^%d+:[^:]+:%d+:%x+$'))
end

-- Puts a task at the end of the line of an exclusive lock, unless it stands there; returns the number of tasks before it.
local function join_line(lock_key, member, now)
  local line_key = lock_key .. ':line'
  redis.call('ZADD', line_key, 'NX', integer(now), member)
  redis.call('PEXPIRE', line_key, 1000 * day_s)
  return redis.call('ZRANK', line_key, member)
end
