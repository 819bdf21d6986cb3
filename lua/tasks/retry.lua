#!lua
-- Let ended tasks run again: dead letters, cancelled and expired ones line up in their lanes and queues as if they had
-- become ready now. They keep their ids, their keys and all that is known of their attempts; but what they failed and died so far
-- counts no more, and they need not start in time any more.
-- status, per id: requeued | already state (it has not ended) | refused state (it succeeded) | damaged | unknown
-- repeat: answers requeued for every task that this token has requeued, whatever became of it since, and changes nothing
local pool       = KEYS[1]                   -- key: root of the pool's slot
local rows       = cmsgpack.unpack(ARGV[1])  -- rows: id
local token      = ARGV[2]                   -- str: names this call and its repeats; one word
local said       = ARGV[3]                   -- str: who and why, kept as evidence
local max_wait_s = tonumber(ARGV[4])         -- int: a task that nobody runs is kept this long
local now_arg    = ARGV[5]                   -- time: test override, microseconds
--@include now_us
--@include integer
--@include next_generation
--@include rank_of
--@include skill_queue
--@include corrupt_field
--@include join_lane
--@include enqueue
--@include start_waiting
--@include flush_waiting
--@include append_event
--@include increment_counters

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local dead_key = pool .. ':dead'
local waiting, requeued, answers = start_waiting(), {}, {}
local may_go_on = {dead = true, cancelled = true, expired = true}

local function retry(id)
  local task_key, out_key = pool .. ':task:' .. id, pool .. ':out:' .. id
  local found = redis.call('HMGET', task_key, 'state', 'gen', 'queue', 'rank', 'env', 'idem', 'fails', 'deaths', 'out',
    'requeued', 'lane', 'asks')
  local state = found[1]
  if not state then return 'unknown', '' end
  local task = {state = state, gen = found[2], queue = found[3], env = found[5], fails = found[7], deaths = found[8]}
  local count, by = string.match(found[10] or '0 0 0 -', '^(%d+) %d+ %d+ (%S+)$')
  if by == token then return 'requeued', state end
  if state == 'succeeded' then return 'refused', state end
  if not may_go_on[state] then return 'already', state end
  if corrupt_field(task) then return 'damaged', state end
  local idem_key = found[6] and pool .. ':idem:' .. found[6]
  local holder = idem_key and redis.call('GET', idem_key)
  redis.call('EXISTS', dead_key, out_key)  -- reading probes what will be written (protocol rule 26)
  local generation = integer(next_generation(task.gen, now_ms))
  local number, fails, deaths = tonumber(count) + 1, tonumber(task.fails or 0), tonumber(task.deaths or 0)
  local state_now = 'ready'
  if found[11] and not join_lane(pool, found[11], id, now) then state_now = 'waiting' end
  redis.call('HSET', task_key, 'state', state_now, 'gen', generation, 'was', task.gen,
    'requeued', number .. ' ' .. fails .. ' ' .. deaths .. ' ' .. token,
    'requeue:' .. number, integer(now_ms) .. ' ' .. state .. ' ' .. said)
  redis.call('HDEL', task_key, 'ended', 'at', 'by', 'cancel', 'due', 'left')
  -- What nobody answered in time is asked again.
  if found[12] and redis.call('HEXISTS', task_key, 'answer:' .. found[12]) == 0 then
    redis.call('HDEL', task_key, 'answered:' .. found[12])
  end
  redis.call('EXPIRE', task_key, max_wait_s)
  -- The key may have run out, and a later task may have it now.
  if holder and string.match(holder, '^%S+') == id then redis.call('EXPIRE', idem_key, max_wait_s) end
  if state_now == 'ready' then
    enqueue(waiting.ready, task.queue or skill_queue(task.env), integer(rank_of(found[4]) + now_ms), id)
  end
  if found[9] then append_event(pool, id, generation, fails + deaths + 1, 'requeued', said) end
  requeued[#requeued + 1] = id
  return 'requeued', state
end

for i = 1, #rows do
  answers[2 * i - 1], answers[2 * i] = retry(rows[i][1])
end
flush_waiting(pool, waiting)
if #requeued > 0 then
  redis.call('ZREM', dead_key, unpack(requeued))
  increment_counters(pool, now, {requeued = #requeued})
end
return answers
