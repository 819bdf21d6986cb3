#!lua flags=allow-oom
-- Records for which tasks the attempts of a worker wait, and the slots that they lend meanwhile (protocol rule 32). Puts
-- the awaited tasks that are ready into the index that fills lent slots, each below the task that waits for it. Refuses
-- a wait that would never end, because an awaited task waits for the parent.
-- returns: per row: ok, depth, number of its tasks that the call has looked at, bytes of the record of the wait
--                    | stale (the attempt lost its task) | cycle, then the tasks from the awaited one to the parent,
--          then per agent: 1 (awaited tasks may arrive in its inbox) or 0
-- repeat: stores the same values again
local pool    = KEYS[1]                   -- key: root of the pool's slot
local worker  = ARGV[1]                   -- str: worker
local rows    = cmsgpack.unpack(ARGV[2])  -- rows: task generation awaited look
local agents  = cmsgpack.unpack(ARGV[3])  -- rows: agent counts
--@include time: integer
--@include envelope: depth_of, skill_queue
--@include record: read_task, has_ended
--@include notify: notify_supervisor, notify_worker
--@include lent: state_lent
--@include share: take_place, free_place, wake_flows

-- All rows of a call share this number, so that no call blocks Redis for more than a few ms.
local look_at, keep_s = 500, 60
local answers, looked = {}, 0
local indexed, wanted, lent = {}, {}, {}

-- Returns the tasks that a task waits for: what its attempt has recorded, the first of those that it joins or runs after, or the
-- task that has the turn in its lane.
local function waits_for(id, task)
  --@row task: state gen env depth queue lane awaits
  if task.state == 'waiting' and task.lane then
    local owner = redis.call('ZRANGE', pool .. ':lane:' .. task.lane, 0, 0)[1]
    return owner and {owner} or {}
  end
  if task.state == 'awaiting_tasks' then
    local after_key = pool .. ':after:' .. id
    return redis.call('TYPE', after_key)['ok'] == 'zset' and redis.call('ZRANGE', after_key, 0, 99) or {}
  end
  if task.state == 'joining' then
    local joins_key = pool .. ':joins:' .. id
    return redis.call('TYPE', joins_key)['ok'] == 'zset' and redis.call('ZRANGE', joins_key, 0, 99) or {}
  end
  local generation, ids = string.match(task.awaits or '', '^(%d+) (.*)$')
  local found = {}
  if task.state == 'assigned' and generation == task.gen then
    for id in string.gmatch(ids, '%S+') do found[#found + 1] = id end
  end
  return found
end

-- Adds a ready task to the index of its queue.
local function index_awaited(id, task, depth)
  --@row task: state gen env depth queue lane awaits
  local queue = task.queue or skill_queue(task.env)
  local added = indexed[queue]
  if not added then
    added = {}
    indexed[queue] = added
  end
  added[#added + 1] = integer(-depth)
  added[#added + 1] = id
end

-- Lowers an awaited task, and all that it waits for, below the task that waits for it. Returns the tasks between the first
-- and the parent if the parent is among them. A task that is deep enough has only deeper ones below it, so that nearly
-- all walks end at the first task. A walk that meets the limit is taken up again by a later call.
local function lower(parent, first, first_depth)
  local stack, above = {{first, first_depth}}, {}
  while #stack > 0 do
    local id, depth = stack[#stack][1], stack[#stack][2]
    stack[#stack] = nil
    if id == parent then
      local path, at = {}, above[id]
      while at do
        table.insert(path, 1, at)
        at = above[at]
      end
      return path
    end
    looked = looked + 1
    if looked > look_at then return nil end
    local task_key = pool .. ':task:' .. id
    local task = read_task(task_key, 'state', 'gen', 'env', 'depth', 'queue', 'lane', 'awaits')
    if task.state and not has_ended(task.state) then
      local own = math.max(depth_of(task.env), tonumber(task.depth) or 0)
      local deeper = own < depth
      if deeper then
        own = depth
        redis.call('HSET', task_key, 'depth', integer(depth))
      end
      if task.state == 'ready' then index_awaited(id, task, own) end
      if deeper or task.state == 'waiting' or task.state == 'joining' or task.state == 'awaiting_tasks' then
        local next_ones = waits_for(id, task)
        for i = 1, #next_ones do
          local other = next_ones[i]
          if other == parent or not above[other] then
            above[other] = id
            stack[#stack + 1] = {other, own + 1}
          end
        end
      end
    end
  end
  return nil
end

local function judge(row)
  local task_key = pool .. ':task:' .. row.task
  local parent = read_task(task_key, 'state', 'gen', 'env', 'depth', 'fair')
  if parent.state ~= 'assigned' or parent.gen ~= row.generation then return {'stale'} end
  local depth = math.max(depth_of(parent.env), tonumber(parent.depth) or 0)
  if row.awaited == '' then
    redis.call('HDEL', task_key, 'awaits')
    -- It goes on, even if others run in its place.
    if parent.fair then take_place(pool, parent.fair, row.task) end
    return {'ok', depth, 0, 0}
  end
  if row.awaited ~= '=' then redis.call('HSET', task_key, 'awaits', row.generation .. ' ' .. row.awaited) end
  -- Its children may have the same key.
  if parent.fair then free_place(pool, lent, parent.fair, row.task) end
  local seen = 0
  for id in string.gmatch(row.look, '%S+') do
    if looked >= look_at then break end
    seen = seen + 1
    local path = lower(row.task, id, depth + 1)
    if path then
      path[#path + 1] = row.task
      redis.call('HDEL', task_key, 'awaits')
      if parent.fair then take_place(pool, parent.fair, row.task) end
      return {'cycle', unpack(path)}
    end
  end
  return {'ok', depth, seen, redis.call('HSTRLEN', task_key, 'awaits')}
end

for i = 1, #rows do answers[i] = judge(rows[i]) end
if lent.freed then wake_flows(pool, lent.freed) end

for queue, scored in pairs(indexed) do
  local awaited_key = pool .. ':awaited:' .. queue
  local added = 0
  for at = 1, #scored, 1000 do
    added = added + redis.call('ZADD', awaited_key, unpack(scored, at, math.min(#scored, at + 999)))
  end
  redis.call('EXPIRE', awaited_key, keep_s)
  if added > 0 then wanted[#wanted + 1] = queue end
end

-- Tells the supervisor that an agent may have room for an awaited task, and the workers that lend slots that it may arrive.
local function notify_lenders(agent)
  if redis.call('EXISTS', pool .. ':lent:' .. agent) == 0 then return end
  notify_supervisor(pool, 'agent:' .. agent)
  local workers = redis.call('HKEYS', pool .. ':agent:' .. agent .. ':workers')
  for i = 1, math.min(#workers, 100) do
    if workers[i] ~= worker and redis.call('HEXISTS', pool .. ':worker:' .. workers[i], 'lent:' .. agent) == 1 then
      notify_worker(pool, workers[i], 'awaited', agent, '')
    end
  end
end

local registered = redis.call('EXISTS', pool .. ':worker:' .. worker) == 1
local raised = {}
for i = 1, #agents do
  local agent, counts = agents[i].agent, agents[i].counts
  -- A record that only has a statement would hide from the heartbeat that the registration is lost.
  if registered then raised[i] = state_lent(pool, agent, worker, counts) and counts ~= '' end
end
for i = 1, #wanted do
  local addressed = string.match(wanted[i], '^agent:(.*)$')
  local names = addressed and {addressed} or redis.call('ZRANGE', pool .. ':skills:' .. string.sub(wanted[i], 7), 0, 9)
  for j = 1, #names do notify_lenders(names[j]) end
end

-- Returns whether awaited tasks may arrive in an inbox: some are ready, or entries of the inbox are unread.
local function expects_awaited(agent, was_raised)
  local skills = redis.call('HGET', pool .. ':agent:' .. agent, 'skills') or ''
  local queues = {'agent:' .. agent}
  for skill in string.gmatch(skills, '%S+') do queues[#queues + 1] = 'skill:' .. skill end
  for i = 1, #queues do
    if redis.call('EXISTS', pool .. ':awaited:' .. queues[i]) == 1 then
      if was_raised then notify_supervisor(pool, 'agent:' .. agent) end
      return 1
    end
  end
  local inbox_key = pool .. ':inbox:' .. agent
  local group = redis.call('EXISTS', inbox_key) == 1 and redis.call('XINFO', 'GROUPS', inbox_key)[1]
  if not group then return 0 end
  for i = 1, #group, 2 do
    if group[i] == 'last-delivered-id' then
      return #redis.call('XRANGE', inbox_key, '(' .. group[i + 1], '+', 'COUNT', 1)
    end
  end
  return 0
end

for i = 1, #agents do answers[#rows + i] = expects_awaited(agents[i].agent, raised[i]) end
return answers
