#!lua flags=allow-oom
-- Renews locks. Takes a lapsed execution lock again, unless another attempt has held it since.
-- returns: per row kept | lost, then the lock's value ('': free)
-- repeat: renews again
local scope   = KEYS[1]                   -- key: root of the scope's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: lock value ttl_ms
local now_arg = ARGV[2]                   -- time: test override, microseconds
--@include time: day_s, now_us
--@include lock: list_lock, live_fence, put_value

local now_ms = math.floor(now_us(now_arg) / 1000)
local answers = {}
for i = 1, #rows do
  local lock, value, ttl_ms = rows[i].lock, rows[i].value, rows[i].ttl_ms
  local lock_key = scope .. ':' .. lock
  local fence_key = scope .. ':exec:fence'
  local execution = string.sub(lock, 1, 4) == 'exec'
  local present = redis.call('GET', lock_key)
  if not present and execution and live_fence(scope, lock) == string.match(value, '^%d+') then
    put_value(lock_key, present, value, ttl_ms)
    present = value
  end
  if present == value then
    redis.call('PEXPIRE', lock_key, ttl_ms)
    if execution then redis.call('PEXPIRE', fence_key, 1000 * day_s) end
    list_lock(scope, lock, now_ms, ttl_ms)
    answers[#answers + 1] = 'kept'
  else
    answers[#answers + 1] = 'lost'
  end
  answers[#answers + 1] = present or ''
end
return answers
