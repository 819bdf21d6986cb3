-- Send a task that was taken from a worker back: to the head of its queue, but from its second death on through
-- `scheduled`, after 1 s, 2 s, 4 s ... 5 min with full jitter, so that it does not kill one worker after the other.
-- `why` tells those who follow a task that nobody died with.
--@include integer
--@include enqueue
--@include append_event
local function requeue_task(pool, waiting, id, task, generation, now, why)
  local state, due = 'ready', nil
  if task.died and task.recent >= 2 then
    state = 'scheduled'
    -- The clock's last digits are the dice; the spread parts tasks that died together.
    waiting.spread = waiting.spread + 618
    local delay = math.min(300000, 1000 * 2 ^ (task.recent - 2)) * ((now + waiting.spread) % 1000) / 1000
    due = integer(math.floor(now / 1000 + delay))
    local scheduled = waiting.scheduled
    scheduled[#scheduled + 1] = due
    scheduled[#scheduled + 1] = id
  else
    enqueue(waiting.ready, task.queue, task.score, id)
  end
  if task.by then
    waiting.expiring[#waiting.expiring + 1] = task.by
    waiting.expiring[#waiting.expiring + 1] = id
  end
  local fields = {'state', state, 'gen', generation}
  if due then fields[5], fields[6], fields[7], fields[8] = 'left', 'death', 'due', due end
  redis.call('HSET', pool .. ':task:' .. id, unpack(fields))
  if task.out and not task.died then
    append_event(pool, id, task.gen, task.fails + task.deaths + 1, 'given_back', why)
  end
end
