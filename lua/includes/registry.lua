-- The registry of workers and agents.
--@include time: integer
--@include lease: read_leases
--@include notify: notify_supervisor
--@include parked: start_unparking

-- Lists the versions that left an agent in `versions`, from which they are forgotten, and takes out those that returned.
-- Both arguments are sets of `skill=digest`.
local function note_versions(pool, agent, before, after, now_ms)
  for version in pairs(before) do
    if not after[version] then redis.call('ZADD', pool .. ':versions', integer(now_ms), agent .. ' ' .. version) end
  end
  for version in pairs(after) do
    if not before[version] then redis.call('ZREM', pool .. ':versions', agent .. ' ' .. version) end
  end
end

-- Counts the workers of an agent that take tasks; a worker that drains has 0 slots.
local function live_workers(agent_key)
  local workers, live = redis.call('HVALS', agent_key .. ':workers'), 0
  for i = 1, #workers do
    if string.sub(workers[i], 1, 2) ~= '0 ' then live = live + 1 end
  end
  return live
end

-- Derives what an agent offers from its live workers: the sum of slots, the skills that all of them have, so that a
-- rolling upgrade assigns no task to a worker without its skill, the smallest backlog, and the versions of skills that
-- any of them has.
local function recount_agent(pool, agent, now_ms)
  local agent_key = pool .. ':agent:' .. agent
  local known = redis.call('HMGET', agent_key, 'skills', 'versions')
  local before, versions_before = known.skills or '', known.versions or ''
  local ids, workers = redis.call('HKEYS', agent_key .. ':workers'), redis.call('HVALS', agent_key .. ':workers')
  local slots, backlog, shared, live = 0, 1, {}, 0
  local had, has, versions = {}, {}, {}
  for i = 1, #workers do
    local own, wish, skills = string.match(workers[i], '^(%d+) (%d+) ?(.*)$')
    if tonumber(own) > 0 then
      for version in string.gmatch(redis.call('HGET', pool .. ':worker:' .. ids[i], 'versions:' .. agent) or '', '%S+') do
        if not has[version] then versions[#versions + 1] = version end
        has[version] = true
      end
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
  -- Workers of one agent may have different leases while it is upgraded: each is judged by its own (`leases:A`).
  local leases, _, longest = read_leases(pool, agent, 0)
  local shortest = longest
  for i = 1, #ids do
    if not string.match(workers[i], '^0 ') then shortest = math.min(shortest, leases[ids[i]] or longest) end
  end
  if longest > 0 then redis.call('HSET', agent_key, 'lease_ms', longest, 'shortest_lease_ms', shortest) end
  table.sort(versions)
  local versions_after = table.concat(versions, ' ')
  redis.call('HSET', agent_key, 'slots', slots, 'backlog', backlog, 'skills', after, 'versions', versions_after)
  if versions_after ~= versions_before then
    for version in string.gmatch(versions_before, '%S+') do had[version] = true end
    note_versions(pool, agent, had, has, now_ms)
  end
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

-- Removes a worker from the registry, and its consumers without pending entries, with their leases: removing another one
-- would lose entries.
local function forget_worker(pool, worker, now_ms)
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
        redis.call('HDEL', pool .. ':leases:' .. agent, worker)
      end
      recount_agent(pool, agent, now_ms)
    end
  end
  redis.call('ZREM', workers_key, worker)
  redis.call('DEL', worker_key)
end
