-- Takes tasks from workers that died or lost them.
--@include time: integer
--@include envelope: skill_queue, depth_of
--@include inbox: task_of_entry
--@include record: read_task, lifetime, keep_alive, forgiven_failures
--@include history: add_attempt
--@include output: append_event
--@include queue: enqueue
--@include ending: end_task, index_dead
--@include held_bytes: collect_bytes
--@include share: ready_place, free_place
--@include budget: end_spending

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

-- Counts the entries of one inbox that a worker has read.
local function count_pending(pool, agent, worker)
  local inbox_key = pool .. ':inbox:' .. agent
  if redis.call('EXISTS', inbox_key) == 0 or #redis.call('XINFO', 'GROUPS', inbox_key) == 0 then return 0 end
  local consumers = redis.call('XPENDING', inbox_key, 'workers')[4] or {}
  for i = 1, #consumers do
    if consumers[i][1] == worker then return tonumber(consumers[i][2]) end
  end
  return 0
end

-- Counts the attempts that may have crashed a worker, in the inboxes of all its agents: `fresh` ones of tasks without a
-- death since their last operator retry, `prior` ones of tasks that died before, and `limited` ones, which died too and
-- share a process with few suspects. Of limited ones also the greatest depth, and how many have it: a task waits for
-- deeper ones, so the deepest ones are the first suspects. A key keeps the counts for a minute, because the caller
-- removes the entries one inbox, and at most one batch, at a time.
local function count_crew(pool, agent, worker, now_ms)
  local crew_key = pool .. ':crew:' .. worker
  local stored = redis.call('GET', crew_key)
  if stored then
    local ms, entries, fresh, prior, limited, deepest, at_deepest =
      string.match(stored, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$')
    -- Fewer entries are left of the same death. More belong to a new one: the worker was only silent, and has lived on.
    if ms and now_ms - tonumber(ms) < 60000 and count_pending(pool, agent, worker) <= tonumber(entries) then
      return {tonumber(fresh), tonumber(prior), tonumber(limited), tonumber(deepest), tonumber(at_deepest)}
    end
  end
  --@row crew: fresh prior limited deepest at_deepest
  local crew, total = {0, 0, 0, 0, 0}, 0
  local agents, facts = {agent}, redis.call('HKEYS', pool .. ':worker:' .. worker)
  for i = 1, #facts do
    local other = string.match(facts[i], '^agent:(.*)$')
    if other and other ~= agent then agents[#agents + 1] = other end
  end
  for i = 1, #agents do
    local inbox_key = pool .. ':inbox:' .. agents[i]
    local grouped = redis.call('EXISTS', inbox_key) == 1 and #redis.call('XINFO', 'GROUPS', inbox_key) > 0
    --@rows pending: entry
    local pending = grouped and redis.call('XPENDING', inbox_key, 'workers', '-', '+', 1000, worker) or {}
    total = total + #pending
    for j = 1, #pending do
      local id = task_of_entry(inbox_key, pending[j].entry)
      local task = read_task(pool .. ':task:' .. id, 'state', 'gen', 'deaths', 'begun', 'group', 'env', 'requeued')
      local _, deaths_forgiven = forgiven_failures(task.requeued)
      if task.state ~= 'assigned' or (task.deaths and task.begun ~= task.gen) then
        -- An entry of no attempt, or of one that has not begun.
      elseif tonumber(task.deaths or 0) == deaths_forgiven then
        crew.fresh = crew.fresh + 1
      elseif not task.group then
        crew.prior = crew.prior + 1
      else
        crew.limited = crew.limited + 1
        local depth = depth_of(task.env)
        if depth == crew.deepest then
          crew.at_deepest = crew.at_deepest + 1
        elseif depth > crew.deepest then
          crew.deepest, crew.at_deepest = depth, 1
        end
      end
    end
  end
  if total > 0 then
    redis.call('SET', crew_key, integer(now_ms) .. ' ' .. total .. ' ' .. crew.fresh .. ' ' .. crew.prior .. ' ' ..
      crew.limited .. ' ' .. crew.deepest .. ' ' .. crew.at_deepest, 'EX', 60)
  end
  return crew
end

-- Judges what a death tells about a task (protocol rule 8). Returns how often it died as the only suspect, and with how
-- many suspects of its depth it may share a process from now on: nil for any number, 0 to run alone.
local function judge_death(task, depth, crew, allowed)
  --@row crew: fresh prior limited deepest at_deepest
  local blamed, group, suspects = task.blamed, task.group, 0
  if group then
    suspects = crew.limited
    if crew.at_deepest == 1 and depth == crew.deepest then suspects = 1 end
  elseif task.recent > 1 then
    suspects = crew.limited + crew.prior
  elseif crew.limited + crew.prior == 0 then
    -- Beside tasks that died before, a first death tells nothing.
    suspects = crew.fresh
  end
  if suspects == 1 then
    -- The death that ends the task is one that it died alone, or after it waited in vain for an idle process: a task that
    -- never died may have run beside it and be the cause.
    local alone = group == 0 or crew.fresh + crew.prior + crew.limited == 1
    blamed = alone and blamed + 1 or math.min(blamed + 1, allowed - 1)
    if blamed >= allowed - 1 then return blamed, 0 end
    return blamed, task.recent > 1 and 1 or group
  end
  -- A first death limits nothing, unless two died: no further round could tell them apart.
  if suspects == 0 or (task.recent == 1 and suspects > 2) then return blamed, group end
  return blamed, math.min(group or suspects, math.max(1, math.floor(suspects / 4)))
end

-- Judges an entry that is taken from a worker; the caller removes the entry (protocol rule 8). Returns the task if it
-- continues, else nil: it ended here, or the entry was of no attempt. `crew` has the counts of the worker, nil if it did
-- not die. `witnessed`: its host saw the worker die; else its lease ran out, most likely together with its whole host.
-- `died` of the task tells whether this was a death, `recent` counts deaths since the last operator retry.
-- `dead` of `ending` gets id, skill, attempt and deaths of a task that is a dead letter now, for the log of the caller.
local function reclaim_task(pool, ending, agent, entry, id, crew, witnessed, max_deaths, dead_ttl_s, evidence)
  local task_key = pool .. ':task:' .. id
  local found = read_task(task_key, 'state', 'gen', 'at', 'queue', 'ttl', 'idem', 'fails', 'deaths', 'by',
    'cancel', 'env', 'skill', 'out', 'begun', 'requeued', 'lane', 'blamed', 'group', 'ran', 'session', 'fair', 'rank', 'joined', 'budget', 'funds')
  local held_agent, held_entry, score
  if found.at then held_agent, held_entry, score = string.match(found.at, '^(%S+) (%S+) (%S+)$') end
  if found.state ~= 'assigned' or held_agent ~= agent or held_entry ~= entry then return nil end
  -- The task has started in time; later attempts have no deadline.
  if crew and found.by then
    redis.call('HDEL', task_key, 'by')
    found.by = false
  end
  -- A task that died before records its begin. Without one it was waiting and did not kill the worker.
  local died = crew ~= nil and not (found.deaths and found.begun ~= found.gen)
  local fails_forgiven, deaths_forgiven = forgiven_failures(found.requeued)
  local task = {gen = found.gen, queue = found.queue or skill_queue(found.env), score = score, idem = found.idem, by = found.by,
    fails = tonumber(found.fails or 0), deaths = tonumber(found.deaths or 0), env = found.env, skill = found.skill,
    out = found.out, died = died, lane = found.lane, forgiven = fails_forgiven, blamed = tonumber(found.blamed or 0),
    group = tonumber(found.group), session = found.session, fair = found.fair, rank = found.rank, joined = found.joined,
    spends = found.budget or found.funds}
  task.recent = task.deaths - deaths_forgiven
  local now_ms = math.floor(ending.now / 1000)
  local skill = found.skill or string.match(task.queue, '^skill:(.*)$')
  local allowed = max_deaths[skill] or 3
  if found.budget or found.funds then end_spending(pool, ending, id, found.gen, found.budget, found.funds, died) end
  if died then
    task.deaths, task.recent = task.deaths + 1, task.recent + 1
    -- The loss of a host tells nothing about a task, unless the task has lost another host just before.
    local last = not witnessed and task.recent > 1 and redis.call('HGET', task_key, 'death:' .. task.deaths - 1)
    if witnessed or string.find(last or '', ' lease ran out', 1, true) then
      task.blamed, task.group = judge_death(task, depth_of(found.env), crew, allowed)
    end
    local fields = {'deaths', task.deaths, 'death:' .. task.deaths, evidence}
    local worker, cause = string.match(evidence, '^%d+ (%S+) (.*)$')
    add_attempt(task_key, fields, found.ran, 'died', task.fails + task.deaths, found.gen, 0, now_ms, agent, worker or '-', cause or '')
    redis.call('HSET', task_key, unpack(fields))
    if task.blamed > 0 then redis.call('HSET', task_key, 'blamed', task.blamed) end
    if task.group then redis.call('HSET', task_key, 'group', task.group) end
    redis.call('HDEL', task_key, 'alone')
  end
  if found.cancel then
    end_task(pool, ending, id, task, 'cancelled', lifetime(found.ttl, nil, found.idem), {'reason', found.cancel})
  elseif died and task.blamed >= allowed then
    end_task(pool, ending, id, task, 'dead', lifetime(found.ttl, dead_ttl_s), {'reason', 'deaths'})
    index_dead(pool, id, now_ms, dead_ttl_s)
    local dead = ending.dead or {}
    local n = #dead
    dead[n + 1], dead[n + 2], dead[n + 3], dead[n + 4] = id, skill or '', task.fails + task.deaths, task.deaths
    ending.dead = dead
  elseif task.by and tonumber(task.by) <= now_ms then
    end_task(pool, ending, id, task, 'expired', lifetime(found.ttl, nil, found.idem), {'reason', 'did not start in time'})
  else
    keep_alive(pool, id, task.idem, task.out)
    if died and task.out then
      append_event(pool, id, task.gen, task.fails + task.deaths, 'taken_back', string.match(evidence, '^%S+ (.*)$'))
    end
    return task
  end
  return nil
end

-- Requeues a task that was taken from a worker at its original place. From its second death as the only suspect on delays
-- it by 1 s, 2 s, 4 s ... 5 min with full jitter, so that it does not kill worker after worker. `why` goes to followers,
-- unless the task died.
local function requeue_task(pool, waiting, id, task, generation, now, why)
  if task.fair then free_place(pool, waiting, task.fair, id) end
  local state, due = 'ready', nil
  if task.died and task.blamed >= 2 then
    state = 'scheduled'
    -- The clock's last digits are random enough; the spread separates tasks that died together.
    waiting.spread = waiting.spread + 618
    local delay = math.min(300000, 1000 * 2 ^ (task.blamed - 2)) * ((now + waiting.spread) % 1000) / 1000
    due = integer(math.floor(now / 1000 + delay))
    local scheduled = waiting.scheduled
    scheduled[#scheduled + 1] = due
    scheduled[#scheduled + 1] = id
  else
    enqueue(waiting.ready, ready_place(task.queue, task.fair, task.rank), task.score, id)
  end
  if task.by then
    waiting.expiring[#waiting.expiring + 1] = task.by
    waiting.expiring[#waiting.expiring + 1] = id
  end
  local fields = {'state', state, 'gen', generation}
  if due then fields[5], fields[6], fields[7], fields[8] = 'left', 'death', 'due', due end
  redis.call('HSET', pool .. ':task:' .. id, unpack(fields))
  collect_bytes(pool, waiting.bytes, id, task.queue, task.env, 1)
  if task.out and not task.died then
    append_event(pool, id, task.gen, task.fails + task.deaths + 1, 'given_back', why)
  end
end
