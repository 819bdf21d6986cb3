-- The registry of workers and agents.
--@include time: day_s, integer
--@include notify: notify_supervisor
--@include parked: start_unparking
--@include lent: state_lent

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

-- Lists an agent among those that may have room for tasks of its skills. `dispatch` looks at it before those that it has
-- looked at.
local function list_room(pool, agent, skills)
  for skill in string.gmatch(skills, '%S+') do redis.call('ZADD', pool .. ':room:' .. skill, 'NX', 0, agent) end
end

-- Returns what a worker offers to an agent, as its row and its record say; nil without a row. A registered worker has
-- `versions` and `lease`, unless Redis lost them.
local function read_offer(pool, agent, worker)
  local row = redis.call('HGET', pool .. ':agent:' .. agent .. ':workers', worker)
  local slots, wish, skills = string.match(row or '', '^(%d+) (%d+) ?(.*)$')
  if not slots then return nil end
  return {
    slots = tonumber(slots), wish = wish, skills = skills,
    versions = redis.call('HGET', pool .. ':worker:' .. worker, 'versions:' .. agent) or nil,
    lease = redis.call('HGET', pool .. ':leases:' .. agent, worker) or nil,
  }
end

-- Adds the offer of a worker to counts, or subtracts it (`by` is 1 or -1).
local function count_offer(counts, offer, by)
  local function add(name, amount) counts[name] = (counts[name] or 0) + amount end
  add('workers', by)
  if offer.lease then add('lease ' .. offer.lease, by) end
  -- A worker that drains has 0 slots.
  if offer.slots == 0 then return end
  add('live', by)
  add('slots', by * offer.slots)
  if offer.wish == '0' then add('without backlog', by) end
  if offer.lease then add('live lease ' .. offer.lease, by) end
  for skill in string.gmatch(offer.skills, '%S+') do add('skill ' .. skill, by) end
  for version in string.gmatch(offer.versions or '', '%S+') do add('version ' .. version, by) end
end

-- Counts the offers of all workers of an agent.
local function count_offers(pool, agent)
  local counts, workers = {}, redis.call('HKEYS', pool .. ':agent:' .. agent .. ':workers')
  for i = 1, #workers do
    local offer = read_offer(pool, agent, workers[i])
    if offer then count_offer(counts, offer, 1) end
  end
  return counts
end

-- Returns the stored counts of an agent, or nil. Programs that do not know of the counts derive the fields of the agent
-- from all its workers; their `shortest_lease_ms` has no leading zero.
local function read_counts(pool, agent)
  local shortest = redis.call('HGET', pool .. ':agent:' .. agent, 'shortest_lease_ms')
  local offers_key = pool .. ':offers:' .. agent
  if string.sub(shortest or '', 1, 1) ~= '0' or redis.call('EXISTS', offers_key) == 0 then return nil end
  local names, values = redis.call('HKEYS', offers_key), redis.call('HVALS', offers_key)
  local counts = {}
  for i = 1, #names do counts[names[i]] = tonumber(values[i]) end
  return counts
end

-- Derives what an agent offers from the counts of its workers: the sum of slots, the skills that all live ones have, so that
-- a rolling upgrade assigns no task to a worker without its skill, the smallest backlog, and the versions of skills that
-- any of them has. Returns what changed: 'skills', 'rest' or nil.
local function publish_offer(pool, agent, counts, now_ms)
  local agent_key = pool .. ':agent:' .. agent
  local known = redis.call('HMGET', agent_key, 'slots', 'backlog', 'skills', 'versions', 'limits')
  -- A record that Redis lost stays missing until a worker registers again, because a heartbeat looks only whether it exists.
  if not known.slots and not known.limits then return nil end
  local skills_before, versions_before = known.skills or '', known.versions or ''
  local live, slots = counts.live or 0, integer(counts.slots or 0)
  local backlog = live > 0 and not counts['without backlog'] and '1' or '0'
  local skills, versions, has, longest, shortest = {}, {}, {}, 0, nil
  for name, count in pairs(counts) do
    local kind, what = string.match(name, '^(%l+) (%S+)$')
    local lease = tonumber(string.match(name, '^live lease (%d+)$'))
    if lease then shortest = math.min(shortest or lease, lease) end
    if kind == 'lease' then longest = math.max(longest, tonumber(what)) end
    if kind == 'skill' and count == live then skills[#skills + 1] = what end
    if kind == 'version' then
      versions[#versions + 1] = what
      has[what] = true
    end
  end
  table.sort(skills)
  table.sort(versions)
  local skills_after, versions_after = table.concat(skills, ' '), table.concat(versions, ' ')
  redis.call('HSET', agent_key, 'slots', slots, 'backlog', backlog, 'skills', skills_after, 'versions', versions_after)
  -- Workers of one agent may have different leases while it is upgraded: each is judged by its own (`leases:A`).
  if longest > 0 then
    redis.call('HSET', agent_key, 'lease_ms', integer(longest), 'shortest_lease_ms', '0' .. integer(shortest or longest))
  end
  if versions_after ~= versions_before then
    local had = {}
    for version in string.gmatch(versions_before, '%S+') do had[version] = true end
    note_versions(pool, agent, had, has, now_ms)
  end
  if skills_after ~= skills_before then
    local now_has = {}
    for i = 1, #skills do now_has[skills[i]] = true end
    for skill in string.gmatch(skills_before, '%S+') do
      if not now_has[skill] then
        redis.call('ZREM', pool .. ':skills:' .. skill, agent)
        redis.call('ZREM', pool .. ':room:' .. skill, agent)
      end
    end
    for i = 1, #skills do redis.call('ZADD', pool .. ':skills:' .. skills[i], 0, agent) end
    list_room(pool, agent, skills_after)
    if live > 0 then start_unparking(pool, agent) end
    return 'skills'
  end
  local same = slots == known.slots and backlog == known.backlog and versions_after == versions_before
  return not same and 'rest' or nil
end

-- Tells supervisors that an agent has changed. Programs that know the skills of all agents read them again.
local function notify_of_agent(pool, agent, changed)
  if changed == 'skills' then
    notify_supervisor(pool, 'agents', agent)
  else
    notify_supervisor(pool, 'agent:' .. agent)
  end
end

-- Counts all workers of an agent anew and derives what the agent offers. Returns what changed, as `publish_offer`.
local function recount_agent(pool, agent, now_ms)
  local offers_key, counts = pool .. ':offers:' .. agent, count_offers(pool, agent)
  local fields = {}
  for name, count in pairs(counts) do
    -- Sums of slots 0 are not stored: an absent count is 0.
    fields[#fields + 1], fields[#fields + 2] = name, integer(count)
  end
  redis.call('DEL', offers_key)
  for i = 1, #fields, 1000 do redis.call('HSET', offers_key, unpack(fields, i, math.min(i + 999, #fields))) end
  if #fields > 0 then redis.call('EXPIRE', offers_key, day_s) end
  return publish_offer(pool, agent, counts, now_ms)
end

-- Applies the change of one worker to the counts of its agent; `before` is its offer before the change, or nil. Costs the
-- same for any number of workers, unless the counts do not fit. Returns what changed, as `publish_offer`.
local function update_offer(pool, agent, worker, before, now_ms)
  local after, change, counts = read_offer(pool, agent, worker), {}, read_counts(pool, agent)
  local exact = counts and (not before or (before.versions and before.lease))
  if not exact then return recount_agent(pool, agent, now_ms) end
  if before then count_offer(change, before, -1) end
  if after then count_offer(change, after, 1) end
  local fields, gone = {}, {}
  for name, by in pairs(change) do
    local count = (counts[name] or 0) + by
    if count < 0 then return recount_agent(pool, agent, now_ms) end
    if by ~= 0 then
      counts[name] = count > 0 and count or nil
      if count > 0 then
        fields[#fields + 1], fields[#fields + 2] = name, integer(count)
      else
        gone[#gone + 1] = name
      end
    end
  end
  local offers_key = pool .. ':offers:' .. agent
  if (counts.workers or 0) ~= redis.call('HLEN', pool .. ':agent:' .. agent .. ':workers') or #fields + #gone > 1000 then
    return recount_agent(pool, agent, now_ms)
  end
  if #fields > 0 then redis.call('HSET', offers_key, unpack(fields)) end
  if #gone > 0 then redis.call('HDEL', offers_key, unpack(gone)) end
  redis.call('EXPIRE', offers_key, day_s)
  return publish_offer(pool, agent, counts, now_ms)
end

-- Returns whether the stored counts of an agent are those of its workers, or are not in use.
local function offer_is_exact(pool, agent)
  local counts = read_counts(pool, agent)
  if not counts then return true end
  local exact = count_offers(pool, agent)
  for name, count in pairs(exact) do
    if counts[name] ~= count then return false end
  end
  for name in pairs(counts) do
    if not exact[name] then return false end
  end
  return true
end

-- Returns the agents that list each of these workers. One look at an agent serves all workers, because a pool may have
-- thousands of both.
local function find_agents(pool, workers)
  local found, agents = {}, redis.call('ZRANGE', pool .. ':agents', 0, -1)
  for i = 1, #workers do found[workers[i]] = {} end
  for i = 1, #agents do
    local workers_key = pool .. ':agent:' .. agents[i] .. ':workers'
    if redis.call('HLEN', workers_key) > #workers then
      local rows = redis.call('HMGET', workers_key, unpack(workers))
      for j = 1, #workers do
        if rows[j] then table.insert(found[workers[j]], agents[i]) end
      end
    else
      local listed = redis.call('HKEYS', workers_key)
      for j = 1, #listed do
        if found[listed[j]] then table.insert(found[listed[j]], agents[i]) end
      end
    end
  end
  return found
end

-- Removes a worker from the registry, and its consumers without pending entries, with their leases: removing another one
-- would lose entries. `listing` are the agents that list a worker without a record; without it they are looked for.
local function forget_worker(pool, worker, now_ms, listing)
  local worker_key, workers_key = pool .. ':worker:' .. worker, pool .. ':workers'
  if not redis.call('ZSCORE', workers_key, worker) then return end
  local agents = {}
  local facts = redis.call('HKEYS', worker_key)
  for i = 1, #facts do agents[#agents + 1] = string.match(facts[i], '^agent:(.*)$') end
  -- The record of a worker is gone only after a long time without a supervisor; then any agent may list the worker.
  if #facts == 0 then agents = listing or find_agents(pool, {worker})[worker] end
  for i = 1, #agents do
    local agent = agents[i]
    local before = read_offer(pool, agent, worker)
    if redis.call('HDEL', pool .. ':agent:' .. agent .. ':workers', worker) == 1 then
      local inbox_key = pool .. ':inbox:' .. agent
      local grouped = redis.call('EXISTS', inbox_key) == 1 and #redis.call('XINFO', 'GROUPS', inbox_key) > 0
      if grouped and #redis.call('XPENDING', inbox_key, 'workers', '-', '+', 1, worker) == 0 then
        redis.call('XGROUP', 'DELCONSUMER', inbox_key, 'workers', worker)
        redis.call('HDEL', pool .. ':leases:' .. agent, worker)
      end
      notify_of_agent(pool, agent, update_offer(pool, agent, worker, before, now_ms))
    end
    state_lent(pool, agent, worker, '')
  end
  redis.call('ZREM', workers_key, worker)
  redis.call('DEL', worker_key)
end
