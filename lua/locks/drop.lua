#!lua flags=allow-oom
-- Releases locks, and withdraws waiters.
-- returns: per row released | not_held
-- repeat: returns not_held
local scope   = KEYS[1]                   -- key: root of the scope's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: lock nonce
local now_arg = ARGV[2]                   -- time: test override, microseconds
--@include time: now_us
--@include lock: is_reserved, nonce_of, pass_lock, unlock

local now_ms = math.floor(now_us(now_arg) / 1000)
local answers = {}
for i = 1, #rows do
  local lock, nonce = rows[i].lock, rows[i].nonce
  local lock_key = scope .. ':' .. lock
  local waiters_key = lock_key .. ':waiters'
  local holder = redis.call('GET', lock_key)
  local waited = redis.call('ZREM', waiters_key, nonce) == 1
  if holder and nonce_of(holder) == nonce then
    unlock(scope, lock, now_ms)
    answers[i] = 'released'
  else
    -- The leaving waiter may hold the token; another waiter gets it.
    if waited and (not holder or is_reserved(holder)) then pass_lock(scope, lock, now_ms) end
    answers[i] = 'not_held'
  end
end
return answers
