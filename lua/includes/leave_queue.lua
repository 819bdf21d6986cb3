-- Take one waiting task out of its queue, or out of the parked ones of the agent that it is addressed to, or from among
-- those that a stop holds back.
--@include drop_ready
--@include suspended_scopes
local function leave_queue(pool, queue, id)
  drop_ready(pool, queue, {id})
  local agent = string.match(queue, '^agent:(.*)$')
  if agent then redis.call('ZREM', pool .. ':parked:' .. agent, id) end
  if redis.call('EXISTS', pool .. ':held') == 0 then return end
  local task = redis.call('HMGET', pool .. ':task:' .. id, 'skill', 'env')
  local scopes = suspended_scopes(queue, task[1], task[2])
  for i = 1, #scopes do redis.call('ZREM', pool .. ':held:' .. scopes[i], id) end
end
