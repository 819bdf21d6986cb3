-- End an ownership of a lock: what belongs to this one owner goes with it, and the lock goes to the next.
--@include pass_lock
local function unlock(scope, lock, now_ms)
  local lock_key = scope .. ':' .. lock
  if string.sub(lock, 1, 4) == 'exec' then
    local fence_key, awaited_key = lock_key .. ':fence', lock_key .. ':awaited'
    redis.call('HDEL', fence_key, 'live')
    redis.call('DEL', awaited_key)
  end
  pass_lock(scope, lock, now_ms)
end
