-- Cancels tasks.
--@include notify: notify_worker
--@include envelope: skill_queue
--@include record: read_task, has_ended, lifetime
--@include lane: leave_ready
--@include limit: return_slots
--@include inbox: pending_worker, remove_entries
--@include ending: end_task, stop_waiting
--@include share: flow_of
--@include budget: end_spending
--@include follow: leave_following

-- Returns a collector for the cancels of one call; `flush_cancelling` stores it.
local function start_cancelling()
  return {entries = {}, grants = {}, grouped = {}}
end

-- Returns whether an attempt of a task has begun: a worker has the task, or an earlier attempt left it.
local function has_begun(pool, cancelling, id)
  local task = read_task(pool .. ':task:' .. id, 'state', 'at', 'was', 'fails', 'deaths')
  if task.was or task.fails or task.deaths then return true end
  if task.state ~= 'assigned' then return false end
  local agent, entry = string.match(task.at, '^(%S+) (%S+)')
  return pending_worker(pool, cancelling.grouped, agent, entry)
end

-- Cancels one task: ends a waiting or unread one; marks a running one and notifies its worker. Returns ended,
-- signalled, already or unknown, and the task's state.
local function cancel_task(pool, ending, cancelling, id, reason)
  local task_key = pool .. ':task:' .. id
  local task = read_task(task_key, 'state', 'queue', 'ttl', 'idem', 'by', 'at', 'gen', 'env', 'out', 'fails',
    'deaths', 'cancel', 'lane', 'session', 'fair', 'rank', 'joined', 'budget', 'funds')
  local state = task.state
  if not state then return 'unknown', '' end
  if has_ended(state) then return 'already', state end
  local agent, entry
  if state == 'assigned' then
    agent, entry = string.match(task.at, '^(%S+) (%S+)')
    local worker = pending_worker(pool, cancelling.grouped, agent, entry)
    if worker then
      -- A repeat without a reason keeps the first one.
      if reason ~= '' or not task.cancel then redis.call('HSET', task_key, 'cancel', reason) end
      notify_worker(pool, worker, 'cancel', id, task.gen)
      return 'signalled', state
    end
  end
  local ended = {idem = task.idem, lane = task.lane, fair = task.fair, session = task.session, out = task.out, gen = task.gen, fails = task.fails, deaths = task.deaths,
    joined = task.joined}
  end_task(pool, ending, id, ended, 'cancelled', lifetime(task.ttl, nil, task.idem), {'reason', reason})
  if state ~= 'assigned' then stop_waiting(pool, ending, id, task.queue, task.env) end
  if state == 'ready' then
    local queue = task.queue or skill_queue(task.env)
    leave_ready(pool, ending, queue, id, task.fair and flow_of(queue, task.fair, task.rank))
  elseif state == 'scheduled' then
    redis.call('ZREM', pool .. ':scheduled', id)
  elseif state == 'awaiting_input' then
    redis.call('ZREM', pool .. ':asking', id)
  elseif state == 'joining' then
    redis.call('ZREM', pool .. ':joining', id)
    redis.call('UNLINK', pool .. ':joins:' .. id)
  elseif state == 'awaiting_tasks' then
    leave_following(pool, id)
  elseif state == 'assigned' then
    local entries = cancelling.entries
    if not entries[agent] then entries[agent] = {} end
    table.insert(entries[agent], entry)
    cancelling.grants[#cancelling.grants + 1] = {agent, id, task.gen}
    if task.budget or task.funds then end_spending(pool, ending, id, task.gen, task.budget, task.funds, false) end
  end
  if task.by then redis.call('ZREM', pool .. ':expiring', id) end
  return 'ended', 'cancelled'
end

-- Removes the entries of tasks that were cancelled unread, and returns their slots of rate limits.
local function flush_cancelling(pool, cancelling)
  for agent, entries in pairs(cancelling.entries) do remove_entries(pool, agent, entries) end
  for i = 1, #cancelling.grants do
    --@row grant: agent id generation
    local grant = cancelling.grants[i]
    return_slots(pool, grant.agent, grant.id, grant.generation)
  end
end

-- Returns the reason that the tasks below a cancelled task get.
local function reason_below(id, reason)
  if reason == '' then return 'with task ' .. id end
  return 'with task ' .. id .. ': ' .. reason
end

-- Notes that the children of a task must be cancelled, which `cancel_children` does in parts; the note stays until it has.
-- Returns whether the task has children.
local function note_children(pool, id, reason)
  if redis.call('EXISTS', pool .. ':children:' .. id) == 0 then return false end
  redis.call('RPUSH', pool .. ':cancelling', id .. ' 0 ' .. reason)
  return true
end
