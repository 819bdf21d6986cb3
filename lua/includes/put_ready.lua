-- Put tasks into one queue: `scored` is a flat list score, id, score, id ... (at most 1000 long).
-- Rings when the queue was empty: while it is not, somebody already knows of it (protocol rule 5).
--@include notify_supervisor
local function put_ready(pool, queue, scored)
  local queue_key = pool .. ':queue:' .. queue
  local was_empty = redis.call('EXISTS', queue_key) == 0
  redis.call('ZADD', queue_key, unpack(scored))
  if was_empty then
    redis.call('SADD', pool .. ':queues', queue)
    notify_supervisor(pool, 'queue:' .. queue)
  end
end
