#!lua flags=allow-oom
-- Takes the execution lock of an attempt. A higher generation of the same task takes the lock over at once.
-- returns: taken, value (fence:task:generation:nonce)
--          held, value of another owner (`next`: kept for a waiter, `next:TASK:POOL`: for a task of the line), ms until
--          it lapses, the task that the caller must wake ('': none), and the number of tasks before it in the line
--          awaited, value of a holder that waits for this very task; waiting would deadlock
--          fenced, value of the holder or '': a higher generation has had the lock; final
-- repeat: the same nonce gets the same fence and a full lease
local scope      = KEYS[1]            -- key: root of the scope's slot
local lock       = ARGV[1]            -- str: lock, exec or exec:TASK
local task       = ARGV[2]            -- str: task
local generation = ARGV[3]            -- str: generation of the attempt
local nonce      = ARGV[4]            -- str: random, identifies this attempt
local ttl_ms     = tonumber(ARGV[5])  -- int: duration of the lease
local wait_ms    = tonumber(ARGV[6])  -- int: the caller waits this long if the lock is held; 0: not at all
local woken      = ARGV[7]            -- str: 1 = it is the caller's turn: it has the hint, or the token of the wake list
local pool_name  = ARGV[8]            -- str: pool of the task, which joins the line of an exclusive lock; empty: it does not
local listens    = ARGV[9]            -- str: 1 = the caller listens for the hint
local now_arg    = ARGV[10]           -- time: test override, microseconds
--@include time: day_s, now_us
--@include lock: reserved_task, next_fence, list_lock, wait_for, withdraw, put_value, pass_lock, join_line

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local lock_key = scope .. ':' .. lock
local fence_key, awaited_key = scope .. ':exec:fence', lock_key .. ':awaited'
local waiters_key, wake_key = lock_key .. ':waiters', lock_key .. ':wake'
local holder = redis.call('GET', lock_key)
local highest = redis.call('HGET', fence_key, task)
local waited = redis.call('EXISTS', waiters_key, wake_key, awaited_key) > 0
local of_task, of_generation, of_nonce
if holder then of_task, of_generation, of_nonce = string.match(holder, '^%d+:([^:]+):(%d+):(%x+)$') end
if of_task == task and of_generation == generation and of_nonce == nonce then
  redis.call('PEXPIRE', lock_key, ttl_ms)
  list_lock(scope, lock, now_ms, ttl_ms)
  return {'taken', holder}
end
if highest and tonumber(string.match(highest, '^%d+')) > tonumber(generation) then return {'fenced', holder or ''} end
local exclusive = lock == 'exec'
local member, wake = task .. ':' .. pool_name, ''
if exclusive and not holder and redis.call('EXISTS', lock_key .. ':line') == 1
  and redis.call('HEXISTS', fence_key, 'kept') == 0 then
  -- The lock lapsed, so that no release woke the first task of the line; the caller may be that task. If the lock was
  -- kept for a task that did not come in time, the caller takes it: else tasks of busy agents could miss their turns in
  -- turn, and none would run.
  redis.call('DEL', awaited_key)
  if pool_name ~= '' then join_line(lock_key, member, now) end
  wake = pass_lock(scope, lock, now_ms, true)
  holder = 'next:' .. wake
end
if of_task == task then
  if tonumber(of_generation) >= tonumber(generation) then return {'fenced', holder} end
elseif holder and not (holder == 'next' and woken == '1') and reserved_task(holder) ~= member then
  if redis.call('SISMEMBER', awaited_key, task) == 1 then
    redis.call('ZREM', lock_key .. ':line', member)
    return {'awaited', holder}
  end
  local ahead = 0
  if wait_ms > 0 then
    wait_for(lock_key, nonce, now, wait_ms, listens)
  elseif exclusive and pool_name ~= '' then
    ahead = join_line(lock_key, member, now)
  end
  return {'held', holder, redis.call('PTTL', lock_key), wake, ahead}
end
if exclusive then redis.call('ZREM', lock_key .. ':line', member) end
local fence = next_fence(scope, now)
local value = fence .. ':' .. task .. ':' .. generation .. ':' .. nonce
put_value(lock_key, holder, value, ttl_ms)
if lock == 'exec' then
  redis.call('HSET', fence_key, 'live', fence, task, generation)
  redis.call('HDEL', fence_key, 'kept')
else
  redis.call('HSET', fence_key, task, generation .. ' ' .. fence)
end
redis.call('PEXPIRE', fence_key, 1000 * day_s)
list_lock(scope, lock, now_ms, ttl_ms)
if waited then
  withdraw(lock_key, nonce)
  redis.call('DEL', wake_key, awaited_key)
end
-- A session sees many tasks: beyond 100, a few of those that hold no lock are dropped with each grant. A stale attempt
-- that the hash has forgotten gets the lock, and fails when it checks that it owns its task (protocol rule 18).
if redis.call('HLEN', fence_key) > 100 then
  local some = redis.call('HRANDFIELD', fence_key, 4, 'WITHVALUES')
  for i = 1, #some, 2 do
    local name, highest_of, live = some[i], string.match(some[i + 1], '^(%d+)( ?)')
    if name ~= task and name ~= 'live' and name ~= 'kept' and (live == '' or tonumber(highest_of) < now_ms - 1000 * day_s) then
      redis.call('HDEL', fence_key, name)
    end
  end
end
return {'taken', value}
