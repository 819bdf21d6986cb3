-- Take tasks out of one queue and keep the index of non-empty queues right. Answers whether the queue holds more.
local function drop_ready(pool, queue, ids)
  local queue_key = pool .. ':queue:' .. queue
  redis.call('ZREM', queue_key, unpack(ids))
  if redis.call('EXISTS', queue_key) == 1 then return true end
  redis.call('SREM', pool .. ':queues', queue)
  return false
end
