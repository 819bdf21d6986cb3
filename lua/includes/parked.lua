-- Parked tasks: ready tasks that are addressed to an agent without their skill.
--@include record: read_task
--@include queue: put_ready, enqueue
--@include share: ready_place

-- Starts to return the parked tasks of an agent, whose skills have changed, to its queue. `assign` continues in steps.
local function start_unparking(pool, agent)
  if redis.call('EXISTS', pool .. ':parked:' .. agent) == 1 then
    redis.call('HSET', pool .. ':agent:' .. agent, 'unpark', '')
  end
end

-- Returns parked tasks whose skill the agent has to its queue, at their places. Examines at most `limit` (500) of them:
-- those behind `after`, which is the score and the id of the last one that stays parked. Returns whether more are left.
local function unpark(pool, agent, skilled, after, limit)
  local parked_key, agent_key = pool .. ':parked:' .. agent, pool .. ':agent:' .. agent
  local score, id = string.match(after, '^(%S+) (%S+)$')
  local from = 0
  -- Without that task, which may have left or come back at another place, the search begins anew.
  if id and redis.call('ZSCORE', parked_key, id) == score then from = redis.call('ZRANK', parked_key, id) + 1 end
  local found = redis.call('ZRANGE', parked_key, from, from + limit - 1, 'WITHSCORES')
  local ready, leave = {}, {}
  for i = 1, #found, 2 do
    local task = read_task(pool .. ':task:' .. found[i], 'state', 'skill', 'fair', 'rank')
    if task.state == 'ready' and task.skill and not skilled[task.skill] then
      after = found[i + 1] .. ' ' .. found[i]
    else
      leave[#leave + 1] = found[i]
      if task.state == 'ready' then
        enqueue(ready, ready_place('agent:' .. agent, task.fair, task.rank), found[i + 1], found[i])
      end
    end
  end
  for place, scored in pairs(ready) do put_ready(pool, place, scored) end
  if #leave > 0 then redis.call('ZREM', parked_key, unpack(leave)) end
  if #found < 2 * limit then
    redis.call('HDEL', agent_key, 'unpark')
    return false
  end
  redis.call('HSET', agent_key, 'unpark', after)
  return true
end
