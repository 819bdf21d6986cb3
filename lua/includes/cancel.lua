-- Cancels tasks.
--@include notify: notify_worker
--@include envelope: skill_queue
--@include record: read_task, has_ended, lifetime
--@include lane: leave_ready
--@include limit: return_slots
--@include inbox: pending_worker, remove_entries
--@include ending: end_task

-- What cancels in one call share; `flush_cancelling` writes it.
local function start_cancelling()
  return {entries = {}, grants = {}, grouped = {}}
end

-- Whether some attempt of a task has begun, as far as anybody knows: a worker has it, or an earlier attempt left it.
local function has_begun(pool, cancelling, id)
  local found = read_task(pool .. ':task:' .. id, 'state', 'at', 'was', 'fails', 'deaths')
  if found.was or found.fails or found.deaths then return true end
  if found.state ~= 'assigned' then return false end
  local agent, entry = string.match(found.at, '^(%S+) (%S+)')
  return pending_worker(pool, cancelling.grouped, agent, entry)
end

-- Cancel one task: what waits, in a queue or unread in an inbox, ends at once; what a worker has is marked, and that
-- worker gets a note. Answers ended, signalled, already or unknown, and its state.
local function cancel_task(pool, ending, cancelling, id, reason)
  local task_key = pool .. ':task:' .. id
  local found = read_task(task_key, 'state', 'queue', 'ttl', 'idem', 'by', 'at', 'gen', 'env', 'out', 'fails',
    'deaths', 'cancel', 'lane')
  local state = found.state
  if not state then return 'unknown', '' end
  if has_ended(state) then return 'already', state end
  local agent, entry
  if state == 'assigned' then
    agent, entry = string.match(found.at, '^(%S+) (%S+)')
    local worker = pending_worker(pool, cancelling.grouped, agent, entry)
    if worker then
      -- Asking again without a reason takes no reason away.
      if reason ~= '' or not found.cancel then redis.call('HSET', task_key, 'cancel', reason) end
      notify_worker(pool, worker, 'cancel', id, found.gen)
      return 'signalled', state
    end
  end
  local task = {idem = found.idem, out = found.out, gen = found.gen, fails = found.fails, deaths = found.deaths, lane = found.lane}
  end_task(pool, ending, id, task, 'cancelled', lifetime(found.ttl), {'reason', reason})
  if state == 'ready' then
    leave_ready(pool, ending, found.queue or skill_queue(found.env), id)
  elseif state == 'scheduled' then
    redis.call('ZREM', pool .. ':scheduled', id)
  elseif state == 'awaiting_input' then
    redis.call('ZREM', pool .. ':asking', id)
  elseif state == 'assigned' then
    local entries = cancelling.entries
    if not entries[agent] then entries[agent] = {} end
    table.insert(entries[agent], entry)
    cancelling.grants[#cancelling.grants + 1] = {agent, id, found.gen}
  end
  if found.by then redis.call('ZREM', pool .. ':expiring', id) end
  return 'ended', 'cancelled'
end

-- Take the tasks out of their inboxes that were cancelled unread in one call; their rate-limit slots return.
local function flush_cancelling(pool, cancelling)
  for agent, entries in pairs(cancelling.entries) do remove_entries(pool, agent, entries) end
  for i = 1, #cancelling.grants do
    --@row grant: agent id generation
    local grant = cancelling.grants[i]
    return_slots(pool, grant.agent, grant.id, grant.generation)
  end
end
