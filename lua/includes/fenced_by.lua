-- The guard of shared state: nil when a lock holds just this value; else what it holds, empty when it holds nothing. A
-- script that changes state asks before its first write, and changes nothing unless the answer is nil.
local function fenced_by(scope, lock, value)
  local lock_key = scope .. ':' .. lock
  local present = redis.call('GET', lock_key)
  if present == value then return nil end
  return present or ''
end
