-- The registry of workers and agents.
--@include notify: notify_supervisor
--@include parked: start_unparking

-- Derives what an agent offers from its live workers: the sum of slots, the skills that all of them have, so that a
-- rolling upgrade assigns no task to a worker without its skill, and the smallest backlog.
local function recount_agent(pool, agent)
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
    if live > 0 then start_unparking(pool, agent) end
  end
  notify_supervisor(pool, 'agents')
end

-- Removes a worker from the registry, and its consumers without pending entries: removing another one would lose
-- entries.
local function forget_worker(pool, worker)
  local worker_key, workers_key = pool .. ':worker:' .. worker, pool .. ':workers'
  if not redis.call('ZSCORE', workers_key, worker) then return end
  local agents = {}
  local facts = redis.call('HKEYS', worker_key)
  for i = 1, #facts do agents[#agents + 1] = string.match(facts[i], '^agent:(.*)$') end
  -- The record of a worker is gone only after a long time without a supervisor; then any agent may list the worker.
  if #facts == 0 then agents = redis.call('ZRANGE', pool .. ':agents', 0, -1) end
  for i = 1, #agents do
    local agent = agents[i]
    if redis.call('HDEL', pool .. ':agent:' .. agent .. ':workers', worker) == 1 then
      local inbox_key = pool .. ':inbox:' .. agent
      local grouped = redis.call('EXISTS', inbox_key) == 1 and #redis.call('XINFO', 'GROUPS', inbox_key) > 0
      if grouped and #redis.call('XPENDING', inbox_key, 'workers', '-', '+', 1, worker) == 0 then
        redis.call('XGROUP', 'DELCONSUMER', inbox_key, 'workers', worker)
      end
      recount_agent(pool, agent)
    end
  end
  redis.call('ZREM', workers_key, worker)
  redis.call('DEL', worker_key)
end
