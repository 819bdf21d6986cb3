-- Take a worker out of the registry, and its consumers where nothing is pending (removing one with entries loses them).
--@include recount
--@include usable
local function forget_worker(pool, worker)
  local worker_key, workers_key = pool .. ':worker:' .. worker, pool .. ':workers'
  if not redis.call('ZSCORE', workers_key, worker) then return end
  local agents = {}
  local facts = redis.call('HKEYS', worker_key)
  for i = 1, #facts do agents[#agents + 1] = string.match(facts[i], '^agent:(.*)$') end
  -- Its record is gone only when nobody looked after the pool for long: then any agent may count on it.
  if #facts == 0 then agents = redis.call('ZRANGE', pool .. ':agents', 0, -1) end
  for i = 1, #agents do
    local agent = agents[i]
    if redis.call('HDEL', pool .. ':agent:' .. agent .. ':workers', worker) == 1 then
      local inbox_key = pool .. ':inbox:' .. agent
      local grouped = redis.call('EXISTS', inbox_key) == 1 and #redis.call('XINFO', 'GROUPS', inbox_key) > 0
      if grouped and #redis.call('XPENDING', inbox_key, 'workers', '-', '+', 1, worker) == 0 then
        redis.call('XGROUP', 'DELCONSUMER', inbox_key, 'workers', worker)
      end
      recount(pool, agent)
    end
  end
  redis.call('ZREM', workers_key, worker)
  redis.call('DEL', worker_key)
  if usable({}, pool .. ':desired', 'hash') then
    redis.call('HDEL', pool .. ':desired', 'drain:worker:' .. worker, 'verified:drain:worker:' .. worker)
  end
end
