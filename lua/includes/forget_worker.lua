-- Take a worker out of the registry, and its consumers where nothing is pending (removing one with entries loses them).
--@include recount
local function forget_worker(pool, worker)
  local worker_key = pool .. ':worker:' .. worker
  local agents = redis.call('ZRANGE', pool .. ':agents', 0, -1)
  for i = 1, #agents do
    local agent = agents[i]
    if redis.call('HDEL', pool .. ':agent:' .. agent .. ':workers', worker) == 1 then
      local inbox_key = pool .. ':inbox:' .. agent
      if redis.call('EXISTS', inbox_key) == 1 and #redis.call('XPENDING', inbox_key, 'workers', '-', '+', 1, worker) == 0 then
        redis.call('XGROUP', 'DELCONSUMER', inbox_key, 'workers', worker)
      end
      recount(pool, agent)
    end
  end
  redis.call('ZREM', pool .. ':workers', worker)
  redis.call('DEL', worker_key)
end
