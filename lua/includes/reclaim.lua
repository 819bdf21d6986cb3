-- Takes tasks from workers that died or lost them.
--@include time: integer
--@include envelope: skill_queue
--@include record: read_task, lifetime, keep_alive, forgiven_failures
--@include output: append_event
--@include queue: enqueue
--@include ending: end_task, index_dead

-- Names other tasks of a worker that died: of `ids` those that the same worker held (`from`, or all when it is nil).
-- Any of them may have killed the worker (protocol rule 8).
local function co_running(ids, from, index)
  local named, more = {}, 0
  for i = 1, #ids do
    if i ~= index and ids[i] ~= '' and (not from or from[i] == from[index]) then
      if #named < 5 then named[#named + 1] = ids[i] else more = more + 1 end
    end
  end
  if #named == 0 then return '' end
  local text = ', with ' .. table.concat(named, ' ')
  if more > 0 then text = text .. ' and ' .. more .. ' more' end
  return text
end

-- Judges an entry that is taken from a worker; the caller removes the entry (protocol rule 8). Returns the task if it
-- continues, else nil: it ended here, or the entry was of no attempt. The argument `died` says that the worker may have
-- begun the task. `died` of the task tells whether this was a death, `recent` counts deaths since the last operator
-- retry, `forgiven` the failures before it.
local function reclaim_task(pool, ending, agent, entry, id, died, max_deaths, dead_ttl_s, evidence)
  local task_key = pool .. ':task:' .. id
  local found = read_task(task_key, 'state', 'gen', 'at', 'queue', 'ttl', 'idem', 'fails', 'deaths', 'by',
    'cancel', 'env', 'skill', 'out', 'begun', 'requeued', 'lane')
  local held_agent, held_entry, score
  if found.at then held_agent, held_entry, score = string.match(found.at, '^(%S+) (%S+) (%S+)$') end
  if found.state ~= 'assigned' or held_agent ~= agent or held_entry ~= entry then return nil end
  -- The task has started in time; later attempts have no deadline.
  if died and found.by then
    redis.call('HDEL', task_key, 'by')
    found.by = false
  end
  -- A task that died before records its begin. Without one it was waiting and did not kill the worker.
  if died and found.deaths and found.begun ~= found.gen then died = false end
  local task = {gen = found.gen, queue = found.queue or skill_queue(found.env), score = score, idem = found.idem, by = found.by,
    fails = tonumber(found.fails or 0), deaths = tonumber(found.deaths or 0), env = found.env, skill = found.skill,
    out = found.out, died = died, lane = found.lane}
  local fails_forgiven, deaths_forgiven = forgiven_failures(found.requeued)
  if died then
    task.deaths = task.deaths + 1
    redis.call('HSET', task_key, 'deaths', task.deaths, 'death:' .. task.deaths, evidence)
  end
  task.forgiven, task.recent = fails_forgiven, task.deaths - deaths_forgiven
  local now_ms = math.floor(ending.now / 1000)
  local skill = found.skill or string.match(task.queue, '^skill:(.*)$')
  if found.cancel then
    end_task(pool, ending, id, task, 'cancelled', lifetime(found.ttl), {'reason', found.cancel})
  elseif died and task.recent >= (max_deaths[skill] or 3) then
    end_task(pool, ending, id, task, 'dead', lifetime(found.ttl, dead_ttl_s), {'reason', 'deaths'})
    index_dead(pool, id, now_ms, dead_ttl_s)
  elseif task.by and tonumber(task.by) <= now_ms then
    end_task(pool, ending, id, task, 'expired', lifetime(found.ttl), {'reason', 'did not start in time'})
  else
    keep_alive(pool, id, task.idem, task.out)
    if died and task.out then
      append_event(pool, id, task.gen, task.fails + task.deaths, 'taken_back', string.match(evidence, '^%S+ (.*)$'))
    end
    return task
  end
  return nil
end

-- Requeues a task that was taken from a worker at its original place. From its second death on delays it by 1 s, 2 s, 4
-- s ... 5 min with full jitter, so that it does not kill worker after worker. `why` goes to followers, unless the task
-- died.
local function requeue_task(pool, waiting, id, task, generation, now, why)
  local state, due = 'ready', nil
  if task.died and task.recent >= 2 then
    state = 'scheduled'
    -- The clock's last digits are random enough; the spread separates tasks that died together.
    waiting.spread = waiting.spread + 618
    local delay = math.min(300000, 1000 * 2 ^ (task.recent - 2)) * ((now + waiting.spread) % 1000) / 1000
    due = integer(math.floor(now / 1000 + delay))
    local scheduled = waiting.scheduled
    scheduled[#scheduled + 1] = due
    scheduled[#scheduled + 1] = id
  else
    enqueue(waiting.ready, task.queue, task.score, id)
  end
  if task.by then
    waiting.expiring[#waiting.expiring + 1] = task.by
    waiting.expiring[#waiting.expiring + 1] = id
  end
  local fields = {'state', state, 'gen', generation}
  if due then fields[5], fields[6], fields[7], fields[8] = 'left', 'death', 'due', due end
  redis.call('HSET', pool .. ':task:' .. id, unpack(fields))
  if task.out and not task.died then
    append_event(pool, id, task.gen, task.fails + task.deaths + 1, 'given_back', why)
  end
end
