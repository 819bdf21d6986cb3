#!lua flags=allow-oom
-- Store the verdicts of attempts: up to 500 in one call, each judged for itself.
-- verdicts: succeeded (payload = result) | dead (payload = error) | retry (payload = error, after delay_ms)
--           snooze (after delay_ms or at at_ms, no attempt counted) | requeue (to the head of its queue, no attempt counted)
--           released (as requeue; the rate-limit slots return too) | cancelled
--           | ask (waits for the answer to question `number`, which is the payload, up to delay_ms or at_ms if one is
--           given; no attempt counted)
-- A task that somebody asked to cancel does not go back: whatever would send it there ends it as cancelled.
-- A row may end after the payload: no delay, no reason.
-- status, per row: ok | already (the same verdict came before; nothing changed) | stale (the task was taken away; nothing changed)
-- answers: for each row that is not ok its number and status
-- repeat: answers already
local pool       = KEYS[1]                   -- key: root of the pool's slot
local rows       = cmsgpack.unpack(ARGV[1])  -- rows: id generation agent entry verdict payload delay_ms at_ms reason number
local dead_ttl_s = tonumber(ARGV[2])         -- int: dead letters are kept at least so long
local max_wait_s = tonumber(ARGV[3])         -- int: a task that goes back is kept this long
local now_arg    = ARGV[4]                   -- time: test override, microseconds
--@include now_us
--@include integer
--@include next_generation
--@include lifetime
--@include rank_of
--@include skill_queue
--@include original_score
--@include enqueue
--@include start_waiting
--@include flush_waiting
--@include index_dead
--@include remove_entries
--@include return_slots
--@include start_endings
--@include end_task
--@include append_event
--@include flush_endings
--@include count_done

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local ending = start_endings(now)
local counts = ending.counts
local answers, entries, released, done = {}, {}, {}, {}
local waiting = start_waiting()
local terminal = {succeeded = true, dead = true, cancelled = true, expired = true}
local again = {retry = 'retried', snooze = 'snoozed', requeue = 'given_back', released = 'given_back', ask = 'asked'}

-- State and generation of a task, and its other fields.
local function read(task_key)
  -- A plain task in its first attempt has env, gen, state and at, and nothing else that has to be read; or a lane on top.
  local fields = redis.call('HLEN', task_key)
  if fields == 4 then return redis.call('HMGET', task_key, 'state', 'gen'), {} end
  if fields == 5 then
    local found = redis.call('HMGET', task_key, 'state', 'gen', 'lane')
    if found[3] then return found, {lane = found[3]} end
  end
  local found = redis.call('HMGET', task_key, 'state', 'gen', 'queue', 'rank', 'ttl', 'idem', 'fails', 'deaths', 'by',
    'cancel', 'out', 'lane')
  return found, {queue = found[3], rank = found[4], ttl = found[5], idem = found[6], fails = found[7],
    deaths = found[8], by = found[9], cancel = found[10], out = found[11], lane = found[12]}
end

local function leave_attempt(task_key, row, task)
  local id, verdict = row[1], row[5]
  local generation = integer(next_generation(row[2], now_ms))
  local delay_ms, at_ms, reason = row[7] or 0, row[8] or 0, row[9] or ''
  local due = 0
  if delay_ms > 0 then due = now_ms + delay_ms end
  if at_ms > due then due = at_ms end
  local state = 'ready'
  if verdict == 'ask' then state = 'awaiting_input' elseif due > now_ms then state = 'scheduled' end
  local fields = {'state', state, 'gen', generation, 'was', row[2]}
  if state == 'scheduled' then
    fields[7], fields[8], fields[9], fields[10] = 'left', verdict, 'due', integer(due)
  end
  local attempt = tonumber(task.fails or 0) + tonumber(task.deaths or 0) + 1
  if verdict == 'retry' then
    fields[#fields + 1], fields[#fields + 2] = 'fails', tonumber(task.fails or 0) + 1
    fields[#fields + 1], fields[#fields + 2] = 'error:' .. attempt, row[6]
  end
  if state == 'awaiting_input' then
    -- Without a deadline it is due never: a time that is left of an earlier wait is none of this question.
    local number, until_ms = integer(row[10] or 1), integer(due)
    fields[7], fields[8], fields[9], fields[10] = 'asks', number, 'due', until_ms
    fields[11], fields[12] = 'ask:' .. number, integer(now_ms) .. ' ' .. until_ms .. ' ' .. row[6]
  end
  if reason ~= '' or verdict == 'snooze' then fields[#fields + 1], fields[#fields + 2] = 'reason', reason end
  redis.call('HSET', task_key, unpack(fields))
  local keep_s = max_wait_s + math.ceil(math.max(0, due - now_ms) / 1000)
  redis.call('EXPIRE', task_key, keep_s)
  if task.idem then redis.call('EXPIRE', pool .. ':idem:' .. task.idem, keep_s) end
  if task.by and verdict == 'released' then
    waiting.expiring[#waiting.expiring + 1] = task.by
    waiting.expiring[#waiting.expiring + 1] = id
  elseif task.by then
    -- It has started in time; what comes after is no start.
    redis.call('HDEL', task_key, 'by')
  end
  if state == 'scheduled' then
    waiting.scheduled[#waiting.scheduled + 1] = integer(due)
    waiting.scheduled[#waiting.scheduled + 1] = id
  elseif state == 'awaiting_input' then
    waiting.asking[#waiting.asking + 1] = due > 0 and integer(due) or '+inf'
    waiting.asking[#waiting.asking + 1] = id
  else
    local score = integer(rank_of(task.rank) + now_ms)
    -- Given back: to the very place it came from, ahead of all that waited behind it.
    if verdict == 'requeue' or verdict == 'released' then score = original_score(task_key) end
    enqueue(waiting.ready, task.queue or skill_queue(redis.call('HGET', task_key, 'env')), score, id)
  end
  counts[again[verdict]] = (counts[again[verdict]] or 0) + 1
  if task.out then append_event(pool, id, row[2], attempt, again[verdict], state == 'awaiting_input' and integer(row[10] or 1) .. ' ' .. row[6] or reason) end
end

local function judge(row)
  local id, verdict = row[1], row[5]
  local task_key = pool .. ':task:' .. id
  local found, task = read(task_key)
  if not found[1] then return 'stale' end
  if found[2] ~= row[2] then
    if redis.call('HGET', task_key, 'was') == row[2] then return 'already' end
    return 'stale'
  end
  if terminal[found[1]] then return 'already' end
  if found[1] ~= 'assigned' then return 'stale' end
  local ids = entries[row[3]]
  if not ids then
    ids = {}
    entries[row[3]] = ids
  end
  ids[#ids + 1] = row[4]
  if verdict == 'released' then released[#released + 1] = row end
  if again[verdict] and not task.cancel then
    leave_attempt(task_key, row, task)
    return 'ok'
  end
  task.gen = row[2]
  if verdict == 'succeeded' then
    done[row[3]] = (done[row[3]] or 0) + 1
    end_task(pool, ending, id, task, 'succeeded', lifetime(task.ttl), nil, row[6])
  elseif verdict == 'dead' then
    local fails = tonumber(task.fails or 0) + 1
    local attempt = fails + tonumber(task.deaths or 0)
    local fields = {'fails', fails, 'reason', row[9] or '', 'error:' .. attempt, row[6]}
    end_task(pool, ending, id, task, 'dead', lifetime(task.ttl, dead_ttl_s), fields)
    index_dead(pool, id, now_ms, dead_ttl_s)
  else
    end_task(pool, ending, id, task, 'cancelled', lifetime(task.ttl), {'reason', task.cancel or row[9] or ''})
  end
  return 'ok'
end

for i = 1, #rows do
  local status = judge(rows[i])
  if status ~= 'ok' then answers[#answers + 1], answers[#answers + 2] = i, status end
end
flush_waiting(pool, waiting)
for agent, ids in pairs(entries) do remove_entries(pool, agent, ids) end
for i = 1, #released do return_slots(pool, released[i][3], released[i][1], released[i][2]) end
flush_endings(pool, ending)
count_done(pool, now, done)
return answers
