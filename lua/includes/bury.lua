-- Index a dead letter by time, and forget those whose tasks are gone by now.
--@include whole
local function bury(pool, id, now_ms, dead_ttl_s)
  local dead_key = pool .. ':dead'
  redis.call('ZADD', dead_key, whole(now_ms), id)
  redis.call('ZREMRANGEBYSCORE', dead_key, '-inf', whole(now_ms - dead_ttl_s * 1000))
  redis.call('EXPIRE', dead_key, dead_ttl_s)
end
