-- Index a dead letter by time, and forget those whose tasks are gone by now.
--@include integer
local function index_dead(pool, id, now_ms, dead_ttl_s)
  local dead_key = pool .. ':dead'
  redis.call('ZADD', dead_key, integer(now_ms), id)
  redis.call('ZREMRANGEBYSCORE', dead_key, '-inf', integer(now_ms - dead_ttl_s * 1000))
  redis.call('EXPIRE', dead_key, dead_ttl_s)
end
