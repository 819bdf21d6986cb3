-- Take tasks out of one queue and keep the index of non-empty queues right.
local function drop_ready(pool, queue, ids)
  local queue_key = pool .. ':queue:' .. queue
  redis.call('ZREM', queue_key, unpack(ids))
  if redis.call('EXISTS', queue_key) == 0 then redis.call('SREM', pool .. ':queues', queue) end
end
