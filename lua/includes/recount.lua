-- Derive what an agent can do from its live workers: slots are summed, skills are those that all of them have (so that a
-- rolling upgrade never hands a task to a worker that lacks its skill), the backlog is the smallest wish.
--@include notify_supervisor
local function recount(pool, agent)
  local agent_key = pool .. ':agent:' .. agent
  local before = redis.call('HGET', agent_key, 'skills') or ''
  local workers = redis.call('HVALS', agent_key .. ':workers')
  local slots, backlog, shared, live = 0, 1, {}, 0
  for i = 1, #workers do
    local own, wish, skills = string.match(workers[i], '^(%d+) (%d+) ?(.*)$')
    if tonumber(own) > 0 then
      live = live + 1
      slots = slots + tonumber(own)
      backlog = math.min(backlog, tonumber(wish))
      for skill in string.gmatch(skills, '%S+') do shared[skill] = (shared[skill] or 0) + 1 end
    end
  end
  local names = {}
  for skill, count in pairs(shared) do
    if count == live then names[#names + 1] = skill end
  end
  table.sort(names)
  local after = table.concat(names, ' ')
  if live == 0 then backlog = 0 end
  redis.call('HSET', agent_key, 'slots', slots, 'backlog', backlog, 'skills', after)
  if after ~= before then
    local now_has = {}
    for i = 1, #names do now_has[names[i]] = true end
    for skill in string.gmatch(before, '%S+') do
      if not now_has[skill] then redis.call('ZREM', pool .. ':skills:' .. skill, agent) end
    end
    for i = 1, #names do redis.call('ZADD', pool .. ':skills:' .. names[i], 0, agent) end
    -- Tasks that were addressed to this agent and waited for a skill get another look, all of them, in their order.
    local parked_key, queue = pool .. ':parked:' .. agent, 'agent:' .. agent
    if live > 0 and redis.call('EXISTS', parked_key) == 1 then
      local queue_key = pool .. ':queue:' .. queue
      redis.call('ZUNIONSTORE', queue_key, 2, queue_key, parked_key, 'AGGREGATE', 'MIN')
      redis.call('SADD', pool .. ':queues', queue)
      redis.call('UNLINK', parked_key)
    end
  end
  notify_supervisor(pool, 'agents')
end
