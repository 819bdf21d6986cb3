-- The next fence number of a scope: higher than every one before it, also when the counter was lost.
--@include integer
local function next_fence(scope, now)
  local fence_key = scope .. ':fence'
  local number = math.max(tonumber(redis.call('GET', fence_key) or 0), now) + 1
  redis.call('SET', fence_key, integer(number), 'EX', 2592000)
  return integer(number)
end
