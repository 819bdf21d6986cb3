-- Cancel one task: what waits, in a queue or unread in an inbox, ends at once; what a worker has is marked, and that
-- worker gets a note. Answers ended, signalled, already or unknown, and its state.
--@include reader
--@include lifetime
--@include skill_queue
--@include leave_ready
--@include notify_worker
--@include end_task
--@include has_ended
local function cancel_task(pool, ending, cancelling, id, reason)
  local task_key = pool .. ':task:' .. id
  local found = redis.call('HMGET', task_key, 'state', 'queue', 'ttl', 'idem', 'by', 'at', 'gen', 'env', 'out', 'fails',
    'deaths', 'cancel', 'lane')
  local state = found[1]
  if not state then return 'unknown', '' end
  if has_ended(state) then return 'already', state end
  local agent, entry
  if state == 'assigned' then
    agent, entry = string.match(found[6], '^(%S+) (%S+)')
    local worker = reader(pool, cancelling.grouped, agent, entry)
    if worker then
      -- Asking again without a reason takes no reason away.
      if reason ~= '' or not found[12] then redis.call('HSET', task_key, 'cancel', reason) end
      notify_worker(pool, worker, 'cancel', id, found[7])
      return 'signalled', state
    end
  end
  local task = {idem = found[4], out = found[9], gen = found[7], fails = found[10], deaths = found[11], lane = found[13]}
  end_task(pool, ending, id, task, 'cancelled', lifetime(found[3]), {'reason', reason})
  if state == 'ready' then
    leave_ready(pool, ending, found[2] or skill_queue(found[8]), id)
  elseif state == 'scheduled' then
    redis.call('ZREM', pool .. ':scheduled', id)
  elseif state == 'awaiting_input' then
    redis.call('ZREM', pool .. ':asking', id)
  elseif state == 'assigned' then
    local entries = cancelling.entries
    if not entries[agent] then entries[agent] = {} end
    table.insert(entries[agent], entry)
    cancelling.grants[#cancelling.grants + 1] = {agent, id, found[7]}
  end
  if found[5] then redis.call('ZREM', pool .. ':expiring', id) end
  return 'ended', 'cancelled'
end
