#!lua flags=allow-oom
-- Releases locks, and withdraws waiters. A row with `TASK:POOL` in place of the nonce withdraws a task that is gone from
-- the line of an exclusive lock.
-- returns: per row released | not_held, then the task that the caller must wake ('': none)
-- repeat: returns not_held, and the task that still has to be woken
local scope   = KEYS[1]                   -- key: root of the scope's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: lock nonce
local now_arg = ARGV[2]                   -- time: test override, microseconds
--@include time: now_us
--@include lock: reserved_task, nonce_of, withdraw, pass_lock, unlock

local now_ms = math.floor(now_us(now_arg) / 1000)
local answers = {}
for i = 1, #rows do
  local lock, nonce = rows[i].lock, rows[i].nonce
  local lock_key = scope .. ':' .. lock
  local holder = redis.call('GET', lock_key)
  local waited = withdraw(lock_key, nonce)
  if holder and nonce_of(holder) == nonce then
    answers[#answers + 1] = 'released'
    answers[#answers + 1] = unlock(scope, lock, holder, now_ms)
  else
    local wake = reserved_task(holder) or ''
    -- The leaving waiter may hold the token; another waiter gets it.
    if (waited and (not holder or holder == 'next')) or (wake ~= '' and wake == nonce) then
      wake = pass_lock(scope, lock, now_ms)
    end
    answers[#answers + 1] = 'not_held'
    answers[#answers + 1] = wake
  end
end
return answers
