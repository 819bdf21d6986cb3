#!lua
-- Requeues ended tasks: dead letters, cancelled and expired ones. They keep ids, idempotency keys and the history of
-- their attempts; earlier failures and deaths no longer count, and `start_by` no longer applies. A task of a flow waits for those
-- of its predecessors that have not ended; the failures of the others do not count.
-- status, per id: requeued | already state (it has not ended) | refused state (it succeeded) | damaged | unknown
-- repeat: returns requeued for every task that this token has requeued, in any state; changes nothing
local pool       = KEYS[1]                   -- key: root of the pool's slot
local rows       = cmsgpack.unpack(ARGV[1])  -- rows: id
local token      = ARGV[2]                   -- str: identifies the call and its repeats; one word
local said       = ARGV[3]                   -- str: actor and reason, kept as evidence
local max_wait_s = tonumber(ARGV[4])         -- int: lifetime of a task that waits
local now_arg    = ARGV[5]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include counter: increment_counters
--@include envelope: skill_queue
--@include record: read_task, has_ended, rank_of, next_generation, corrupt_field
--@include output: append_event
--@include queue: enqueue, start_waiting, flush_waiting
--@include lane: join_lane
--@include held_bytes: collect_bytes
--@include share: ready_place
--@include key: has_type
--@include follow: state_of_predecessor, await_predecessors

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local dead_key = pool .. ':dead'
local waiting, requeued, answers = start_waiting(), {}, {}
local may_go_on = {dead = true, cancelled = true, expired = true}

local numbers, started, retry = {}, {}, nil
-- States of predecessors, which many rows may share, as this call has read and changed them.
local states, types = {}, {}
for i = 1, #rows do numbers[rows[i].id] = i end

-- Judges a row, once per call.
local function answer(i)
  if started[i] then return end
  started[i] = true
  answers[2 * i - 1], answers[2 * i] = retry(rows[i].id)
end

function retry(id)
  local task_key = pool .. ':task:' .. id
  local found = read_task(task_key, 'state', 'gen', 'queue', 'rank', 'env', 'idem', 'fails', 'deaths', 'out',
    'requeued', 'lane', 'asks', 'fair', 'join', 'after')
  local state = found.state
  if not state then return 'unknown', '' end
  local task = {state = state, gen = found.gen, queue = found.queue, env = found.env, fails = found.fails,
    deaths = found.deaths}
  local count, by = string.match(found.requeued or '0 0 0 -', '^(%d+) %d+ %d+ (%S+)$')
  if by == token then return 'requeued', state end
  if state == 'succeeded' then return 'refused', state end
  if not may_go_on[state] then return 'already', state end
  if corrupt_field(task) then return 'damaged', state end
  local idem_key = found.idem and pool .. ':idem:' .. found.idem
  local holder = idem_key and redis.call('GET', idem_key)
  local generation = integer(next_generation(task.gen, now_ms))
  local number, fails, deaths = tonumber(count) + 1, tonumber(task.fails or 0), tonumber(task.deaths or 0)
  local state_now, missing = 'ready', {}
  for predecessor, policy in string.gmatch(found.after or '', '([%x-]+)(%+?)') do
    -- Predecessors of the same call go first, so that the task waits for them.
    if numbers[predecessor] then answer(numbers[predecessor]) end
    local its_state = states[predecessor] or state_of_predecessor(pool, predecessor)
    states[predecessor] = its_state
    if not has_ended(its_state) and its_state ~= 'deleted' then
      missing[#missing + 1] = policy == '+' and 1 or 0
      missing[#missing + 1] = predecessor
    end
  end
  if #missing > 0 then
    -- A client may have written keys of another type, and nothing may fail below. The reconciler sets them aside.
    if not has_type(types, pool .. ':after', 'zset') or not has_type(types, pool .. ':after:' .. id, 'zset') then
      return 'damaged', state
    end
    state_now = 'awaiting_tasks'
    await_predecessors(pool, id, missing, integer(now_ms), max_wait_s)
  elseif found.lane and not join_lane(pool, found.lane, id, now) then
    state_now = 'waiting'
  end
  redis.call('HSET', task_key, 'state', state_now, 'gen', generation, 'was', task.gen,
    'requeued', number .. ' ' .. fails .. ' ' .. deaths .. ' ' .. token,
    'requeue:' .. number, integer(now_ms) .. ' ' .. state .. ' ' .. said)
  redis.call('HDEL', task_key, 'ended', 'at', 'by', 'cancel', 'due', 'left', 'blamed', 'group', 'alone', 'refused', 'snoozes', 'unfunded', 'need')
  -- A question whose deadline passed is asked again.
  if found.asks and redis.call('HEXISTS', task_key, 'answer:' .. found.asks) == 0 then
    redis.call('HDEL', task_key, 'answered:' .. found.asks)
  end
  -- The deadline of a join begins anew.
  local join = string.match(found.join or '', '^%d+ (%d+) ')
  if join then redis.call('HDEL', task_key, 'join:' .. join) end
  redis.call('EXPIRE', task_key, max_wait_s)
  -- The key may have expired, and a later task may own it.
  if holder and string.match(holder, '^%S+') == id then redis.call('EXPIRE', idem_key, max_wait_s) end
  if state_now == 'ready' then
    enqueue(waiting.ready, ready_place(task.queue or skill_queue(task.env), found.fair, found.rank), integer(rank_of(found.rank) + now_ms), id)
  end
  if found.out then append_event(pool, id, generation, fails + deaths + 1, 'requeued', said) end
  collect_bytes(pool, waiting.bytes, id, task.queue, task.env, 1)
  requeued[#requeued + 1] = id
  states[id] = state_now
  return 'requeued', state
end

for i = 1, #rows do answer(i) end
flush_waiting(pool, waiting)
if #requeued > 0 then
  redis.call('ZREM', dead_key, unpack(requeued))
  increment_counters(pool, now, {requeued = #requeued})
end
return answers
