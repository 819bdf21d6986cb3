#!lua flags=allow-oom
-- Stores the verdicts of attempts: up to 500 rows, each judged for itself; a row may end after its payload. A task whose
-- cancel is requested does not return to its queue: it ends as cancelled.
-- verdicts: succeeded (payload = result; `envelope`, if given, takes the place of the stored one;
--             with `rewrite`, a plain record is deleted and written again, so that a hash table becomes a listpack) | dead (payload = error) | cancelled
--           | retry (payload = error; after delay_ms)
--           | snooze (after delay_ms or at at_ms; counts no attempt; `number`: snoozes that the handler may raise, after which
--             the next one ends the task as dead; -1 any number; 0: the worker put the task off)
--           | requeue (at its original place; counts no attempt)
--           | released (as requeue; returns the slots of rate limits too)
--           | invalid (payload = error of the arguments, whose names are `names`, in the version `version` of the skill;
--             as released while another version may take them, else as dead)
--           | await_lock (as released, but after delay_ms, or when `wake` is called; at once if it was)
--           | join (until enough of the tasks have ended that `join` has registered, or delay_ms or at_ms if given; `number`: of the
--             join; counts no attempt; at once at its original place if they have)
--           | ask (payload = question `number`; until its answer, or delay_ms or at_ms if given; counts no attempt)
-- status, per row: ok | already (the same verdict is stored; nothing changed) | stale (the attempt lost its task;
-- nothing changed) | lost (`apart`: the record has no result of this generation; nothing changed)
-- returns: for each row that is not ok its number and status; for each task that was not ready since its submit the number
-- of its row and the ms since when it was (0: unknown); for each invalid or snoozed task that ended as dead the number of its
-- row and `dead`
-- repeat: returns already
local pool       = KEYS[1]                   -- key: root of the pool's slot
local rows       = cmsgpack.unpack(ARGV[1])  -- rows: id generation agent entry verdict payload envelope rewrite delay_ms at_ms reason number version names began_ago_ms timed_out apart
local worker     = ARGV[2]                   -- str: worker that ran them
local dead_ttl_s = tonumber(ARGV[3])         -- int: minimum lifetime of dead letters
local max_wait_s = tonumber(ARGV[4])         -- int: a task that goes back is kept this long
local now_arg    = ARGV[5]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include counter: count_done
--@include envelope: skill_queue
--@include join: parse_join, is_met
--@include record: read_task, read_alike, has_ended, lifetime, rank_of, original_score, next_generation, attempt_number
--@include history: add_attempt, add_error
--@include output: append_event
--@include queue: enqueue, start_waiting, flush_waiting
--@include version: add_version, awaits_version
--@include limit: return_slots
--@include inbox: remove_from_inboxes
--@include ending: start_endings, end_task, flush_endings, index_dead
--@include share: ready_place, free_place
--@include budget: end_spending
--@include held_bytes: collect_bytes
--@rare: is_unstarted, returned_as, outcome_of, has_ended, add_error, stored_size, collect_bytes, add_bytes
--@rare: leave_attempt, note_refusal, note_attempt, return_slots, index_dead, append_event, pass_lane, put_ready, put_due
--@rare: flush_turns, drop_result, notify_of_rooms, join_flow, free_place, wake_flows, flush_joins, leave_joins, is_met, begin_to_join
--@rare: end_spending, flush_budgets, tell_followers

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local ending = start_endings(now)
local counts = ending.counts
local answers, entries, released, done = {}, {}, {}, {}
local waiting = start_waiting()

-- Returns whether a verdict says that its attempt began nothing.
local function is_unstarted(verdict)
  return verdict == 'released' or verdict == 'invalid' or verdict == 'await_lock'
end

-- Returns the counter of a verdict that sends its task back; nil for one that ends it.
local function returned_as(verdict)
  if verdict == 'retry' then return 'retried' end
  if verdict == 'snooze' then return 'snoozed' end
  if verdict == 'ask' then return 'asked' end
  if verdict == 'join' then return 'joining' end
  return (verdict == 'requeue' or is_unstarted(verdict)) and 'given_back' or nil
end

-- Returns how an attempt ended, by its verdict; nil for `released` and `await_lock`, which began nothing.
local function outcome_of(verdict)
  if verdict == 'retry' or verdict == 'dead' then return 'failed' end
  if verdict == 'snooze' then return 'snoozed' end
  if verdict == 'ask' then return 'asked' end
  if verdict == 'join' then return 'joining' end
  if verdict == 'requeue' then return 'interrupted' end
  if verdict == 'invalid' then return 'refused' end
  return verdict == 'cancelled' and 'cancelled' or nil
end

-- The fields of assigned tasks that matter here, and those that tasks of this call had, by their number.
local assigned_fields = ',at,queue,rank,ttl,idem,fails,deaths,by,cancel,out,lane,refused,skill,woken,ran,session,due,was,asks,'
  .. 'snoozes,fair,joined,budget,funds,=env,-after,-followers,-later,-need,'
local assigned_layouts = {}

-- Returns state and generation of a task, and a table of its other fields; of a plain task also `at`, with `rewrite`.
local function read(task_key, has_result, rewrite)
  -- A plain task in its first attempt has env, gen, state and at, or these and large arguments.
  local fields = redis.call('HLEN', task_key) - (has_result and 1 or 0)
  if fields == 4 and rewrite then
    local found = read_task(task_key, 'state', 'gen', 'at')
    return found, {}, found.at
  end
  if fields == 4 then return read_task(task_key, 'state', 'gen'), {} end
  if not has_result and fields > 4 and fields <= 12 then
    local found, task = read_alike(task_key, fields, ',state,gen,', assigned_fields, assigned_layouts)
    if found then
      task.ready_ms = task.asks and '0' or task.due or (task.was and '0')
      return found, task
    end
  end
  if fields == 5 and redis.call('HEXISTS', task_key, 'args') == 1 then return read_task(task_key, 'state', 'gen'), {ran = false} end
  local found = read_task(task_key, 'state', 'gen', 'queue', 'rank', 'ttl', 'idem', 'fails', 'deaths', 'by',
    'cancel', 'out', 'lane', 'refused', 'skill', 'woken', 'ran', 'session', 'due', 'was', 'asks', 'snoozes', 'fair', 'joined', 'budget', 'funds')
  return found, {refused = found.refused, skill = found.skill, queue = found.queue, rank = found.rank, ttl = found.ttl,
    idem = found.idem, fails = found.fails, deaths = found.deaths, by = found.by, cancel = found.cancel,
    out = found.out, lane = found.lane, woken = found.woken, ran = found.ran,
    session = found.session, snoozes = found.snoozes, fair = found.fair, joined = found.joined, budget = found.budget, funds = found.funds, ready_ms = found.asks and '0' or found.due or (found.was and '0')}
end

-- Adds the version of a skill that refused the arguments of a task to its others. Returns whether the task waits for
-- another version (protocol rule 28).
local function note_refusal(task_key, row, task)
  local queue = task.queue or skill_queue(redis.call('HGET', task_key, 'env'))
  local skill = task.skill or string.match(queue, '^skill:(.*)$')
  task.refused = add_version(task.refused, row.version)
  return awaits_version(pool, skill, string.match(queue, '^agent:(.*)$'), task.refused, row.names)
end

-- Adds the attempt of a row to the fields that its task gets. `outcome` is nil if the attempt did not begin; `reason`
-- replaces that of the row.
local function note_attempt(task_key, row, task, fields, outcome, reason)
  if not outcome then return end
  if row.timed_out then outcome = 'timed_out' end
  local began_ms = row.began_ago_ms and now_ms - row.began_ago_ms or 0
  add_attempt(task_key, fields, task.ran, outcome, attempt_number(task.fails, task.deaths), row.generation, began_ms, now_ms,
    row.agent, worker, reason or row.reason or '')
end

-- Returns the state of a task whose attempt ends with a join: `joining`, or `ready` if the join is met or was not registered
-- by this attempt. `fields` gets the join; its deadline stays when another attempt comes to the same join. Returns the
-- deadline in ms too, 0 for none.
local function begin_to_join(task_key, row, fields)
  local registered, _, left = parse_join(redis.call('HGET', task_key, 'join'))
  local name = 'join:' .. integer(row.number or 1)
  local stored = redis.call('HGET', task_key, name)
  local until_ms = tonumber(string.match(stored or '', '^[1-9]%d* (%d+)') or nil)
  if not until_ms then
    local delay_ms, at_ms = row.delay_ms or 0, row.at_ms or 0
    until_ms = delay_ms > 0 and now_ms + delay_ms or at_ms
    stored = integer(now_ms) .. ' ' .. integer(until_ms)
  end
  fields[7], fields[8], fields[9], fields[10] = 'due', '0', name, stored
  local state = 'ready'
  if registered == row.generation and not is_met(pool, row.id, left) then
    state = 'joining'
  else
    redis.call('UNLINK', pool .. ':joins:' .. row.id)
    until_ms = 0
    counts.joined = (counts.joined or 0) + 1
  end
  return state, until_ms
end

local function leave_attempt(task_key, row, task)
  local id, verdict = row.id, row.verdict
  local generation = integer(next_generation(row.generation, now_ms))
  local delay_ms, at_ms, reason = row.delay_ms or 0, row.at_ms or 0, row.reason or ''
  local due = 0
  if task.fair then free_place(pool, ending, task.fair, id) end
  if verdict == 'await_lock' and task.woken == row.generation then delay_ms = 0 end
  if delay_ms > 0 then due = now_ms + delay_ms end
  if at_ms > due then due = at_ms end
  local state = 'ready'
  local fields = {'state', state, 'gen', generation, 'was', row.generation}
  if verdict == 'join' then
    state, due = begin_to_join(task_key, row, fields)
  elseif verdict == 'ask' then
    state = 'awaiting_input'
  elseif due > now_ms then
    state = 'scheduled'
  end
  fields[2] = state
  if state == 'scheduled' then
    fields[7], fields[8], fields[9], fields[10] = 'left', verdict, 'due', integer(due)
  end
  local attempt = attempt_number(task.fails, task.deaths)
  if verdict == 'retry' then
    fields[#fields + 1], fields[#fields + 2] = 'fails', tonumber(task.fails or 0) + 1
    add_error(task_key, fields, attempt, row.payload)
  elseif verdict == 'snooze' and (row.number or 0) ~= 0 then
    fields[#fields + 1], fields[#fields + 2] = 'snoozes', tonumber(task.snoozes or 0) + 1
  end
  if state == 'awaiting_input' then
    -- 0: no deadline. Overwrites the due time of an earlier wait.
    local number, until_ms = integer(row.number or 1), integer(due)
    fields[7], fields[8], fields[9], fields[10] = 'asks', number, 'due', until_ms
    fields[11], fields[12] = 'ask:' .. number, integer(now_ms) .. ' ' .. until_ms .. ' ' .. row.payload
  end
  if reason ~= '' or verdict == 'snooze' then fields[#fields + 1], fields[#fields + 2] = 'reason', reason end
  if verdict == 'invalid' then fields[#fields + 1], fields[#fields + 2] = 'refused', task.refused end
  note_attempt(task_key, row, task, fields, outcome_of(verdict))
  redis.call('HSET', task_key, unpack(fields))
  local keep_s = max_wait_s + math.ceil(math.max(0, due - now_ms) / 1000)
  redis.call('EXPIRE', task_key, keep_s)
  if task.idem then redis.call('EXPIRE', pool .. ':idem:' .. task.idem, keep_s) end
  if task.by and is_unstarted(verdict) then
    waiting.expiring[#waiting.expiring + 1] = task.by
    waiting.expiring[#waiting.expiring + 1] = id
  elseif task.by then
    -- The task has started in time; later attempts have no deadline.
    redis.call('HDEL', task_key, 'by')
  end
  local envelope = redis.call('HGET', task_key, 'env')
  if state == 'scheduled' then
    waiting.scheduled[#waiting.scheduled + 1] = integer(due)
    waiting.scheduled[#waiting.scheduled + 1] = id
  elseif state == 'awaiting_input' then
    waiting.asking[#waiting.asking + 1] = due > 0 and integer(due) or '+inf'
    waiting.asking[#waiting.asking + 1] = id
  elseif state == 'joining' then
    waiting.joining[#waiting.joining + 1] = due > 0 and integer(due) or '+inf'
    waiting.joining[#waiting.joining + 1] = id
  else
    local score = integer(rank_of(task.rank) + now_ms)
    -- A requeued task returns to its original place.
    if verdict == 'requeue' or verdict == 'join' or is_unstarted(verdict) then score = original_score(task_key) end
    enqueue(waiting.ready, ready_place(task.queue or skill_queue(envelope), task.fair, task.rank), score, id)
  end
  collect_bytes(pool, waiting.bytes, id, task.queue, envelope, 1)
  local returned = returned_as(verdict)
  counts[returned] = (counts[returned] or 0) + 1
  if task.out then
    local text = state == 'awaiting_input' and integer(row.number or 1) .. ' ' .. row.payload or reason
    append_event(pool, id, row.generation, attempt, returned, text)
  end
end

local function judge(row, number)
  local id, verdict = row.id, row.verdict
  local task_key = pool .. ':task:' .. id
  --@row found: state gen
  local found, task, at = read(task_key, row.apart, row.rewrite)
  if not found.state then return 'stale' end
  if found.gen ~= row.generation then
    if redis.call('HGET', task_key, 'was') == row.generation then return 'already' end
    return 'stale'
  end
  if found.state ~= 'assigned' then return has_ended(found.state) and 'already' or 'stale' end
  if row.apart and redis.call('HEXISTS', task_key, 'result:' .. row.generation) == 0 then return 'lost' end
  if task.ready_ms then answers[#answers + 1], answers[#answers + 2] = number, task.ready_ms end
  local ids = entries[row.agent]
  if not ids then
    ids = {}
    entries[row.agent] = ids
  end
  ids[#ids + 1] = row.entry
  if task.budget or task.funds then end_spending(pool, ending, id, row.generation, task.budget, task.funds, false) end
  if verdict ~= 'succeeded' and is_unstarted(verdict) then released[#released + 1] = row end
  if verdict == 'invalid' and not task.cancel and not note_refusal(task_key, row, task) then
    verdict = 'dead'
    answers[#answers + 1], answers[#answers + 2] = number, 'dead'
  end
  local reason, trace = row.reason or '', row.payload
  if verdict == 'snooze' and not task.cancel and (row.number or 0) > 0 and tonumber(task.snoozes or 0) >= row.number then
    verdict = 'dead'
    answers[#answers + 1], answers[#answers + 2] = number, 'dead'
    local last = reason ~= '' and '; it said: ' .. reason or ''
    reason = 'snoozed ' .. integer(row.number) .. ' times, and max_snoozes of its skill allows no more' .. last
    trace = reason
  end
  if verdict ~= 'succeeded' and returned_as(verdict) and not task.cancel then
    leave_attempt(task_key, row, task)
    return 'ok'
  end
  task.gen = row.generation
  if verdict == 'succeeded' then
    done[row.agent] = (done[row.agent] or 0) + 1
    if task.ran then
      -- The record of a task that succeeds at once tells as much, except for the worker.
      local fields = {}
      note_attempt(task_key, row, task, fields, 'succeeded')
      redis.call('HSET', task_key, unpack(fields))
    end
    -- Large arguments are a field of their own. A record that has one is not plain, so all its fields were read.
    if row.envelope and task.ran ~= nil then redis.call('HDEL', task_key, 'args') end
    end_task(pool, ending, id, task, 'succeeded', lifetime(task.ttl, nil, task.idem), nil, row.payload, row.envelope, at)
  elseif verdict == 'dead' then
    local fails = tonumber(task.fails or 0) + 1
    local attempt = fails + tonumber(task.deaths or 0)
    local fields = {'fails', fails, 'reason', reason}
    add_error(task_key, fields, attempt, trace)
    note_attempt(task_key, row, task, fields, outcome_of(row.verdict), reason)
    end_task(pool, ending, id, task, 'dead', lifetime(task.ttl, dead_ttl_s), fields)
    index_dead(pool, id, now_ms, dead_ttl_s)
  else
    local said = task.cancel or reason
    local fields = {'reason', said}
    note_attempt(task_key, row, task, fields, outcome_of(verdict) and 'cancelled', said)
    end_task(pool, ending, id, task, 'cancelled', lifetime(task.ttl, nil, task.idem), fields)
  end
  return 'ok'
end

-- Removes the large result of a row that changed nothing, unless the task refers to it.
local function drop_result(row)
  local task_key, field = pool .. ':task:' .. row.id, 'result:' .. row.generation
  local result = redis.call('HGET', task_key, 'result')
  if not result or string.sub(result, 1, #field + 2) ~= '\2' .. field .. ' ' then redis.call('HDEL', task_key, field) end
end

for i = 1, #rows do
  local status = judge(rows[i], i)
  if status ~= 'ok' then
    answers[#answers + 1], answers[#answers + 2] = i, status
    if rows[i].apart then drop_result(rows[i]) end
  end
end
flush_waiting(pool, waiting)
remove_from_inboxes(pool, entries)
for i = 1, #released do
  local row = released[i]
  return_slots(pool, row.agent, row.id, row.generation)
end
flush_endings(pool, ending)
count_done(pool, now, done)
return answers
