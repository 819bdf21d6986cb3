-- Take one waiting task out of its queue, or out of the parked ones of the agent that it is addressed to.
--@include drop_ready
local function leave_queue(pool, queue, id)
  drop_ready(pool, queue, {id})
  local agent = string.match(queue, '^agent:(.*)$')
  if agent then redis.call('ZREM', pool .. ':parked:' .. agent, id) end
end
