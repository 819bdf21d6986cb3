#!lua flags=allow-oom
-- Answers the question of a task and requeues the task at its original place. The first answer wins.
-- status, of the answer: answered | already who (the same answer came before) | other who value (another answer came
-- before) | late when (the deadline has passed) | not_asking state number (no question, or another one) | invalid (not
-- among the options) | unknown
-- returns: status, then the values named above; only `answered` changes the task
-- repeat: returns already
local pool       = KEYS[1]             -- key: root of the pool's slot
local id         = ARGV[1]             -- str: task
local number     = tonumber(ARGV[2])   -- int: number of the question, from 1
local value      = ARGV[3]             -- str: the answer, JSON as Python encodes it
local actor      = ARGV[4]             -- str: the answering person or client
local max_wait_s = tonumber(ARGV[5])   -- int: lifetime of a task that waits
local grant      = ARGV[6]             -- str: budget and four amounts that the answer grants; empty: none is asked for
local now_arg    = ARGV[7]             -- time: test override, microseconds
--@include time: now_us, integer
--@include counter: increment_counters
--@include envelope: skill_queue
--@include record: read_task, rank_of, attempt_number
--@include output: append_event
--@include queue: put_ready
--@include share: ready_place
--@include budget: start_budgets, whole_amounts, raise_limit

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local task_key = pool .. ':task:' .. id
local ask, answer, note = 'ask:' .. integer(number), 'answer:' .. integer(number), 'answered:' .. integer(number)
local task = read_task(task_key, 'state', 'asks', ask, answer, note, 'queue', 'rank', 'env', 'at', 'idem',
  'out', 'gen', 'fails', 'deaths', 'fair')
local state, question, given, answered = task.state, task.ask, task.answer, task.note
if not state then return {'unknown'} end
if given == value then return {'already', answered} end
if given then return {'other', answered, given} end
if question and answered then return {'late', answered} end
if state ~= 'awaiting_input' or task.asks ~= integer(number) then return {'not_asking', state, task.asks or '0'} end

local function fits(options)
  if #options == 0 then return true end
  for i = 1, #options do
    if options[i] == value then return true end
  end
  return false
end

--@row asked: text options default
local asked = cmsgpack.unpack(string.sub(question, string.match(question, '^%d+ %d+ ()')))
if not fits(asked.options) then return {'invalid'} end

local queue = task.queue or skill_queue(task.env)
local score = string.match(task.at or '', ' (%d+)$') or integer(rank_of(task.rank) + now_ms)
local budget, amounts = string.match(grant, '^(%S+) (.*)$')
if budget then
  local more, any = whole_amounts(amounts), false
  for i = 1, 4 do any = any or more[i] > 0 end
  -- Without a grant the task may start without room, so that its handler learns of the refusal.
  if any then redis.call('HDEL', task_key, 'unfunded') else redis.call('HSET', task_key, 'unfunded', '1') end
  if any then raise_limit(pool, start_budgets(now), budget, more) end
end
redis.call('HSET', task_key, 'state', 'ready', answer, value, note, integer(now_ms) .. ' ' .. actor)
redis.call('EXPIRE', task_key, max_wait_s)
if task.idem then redis.call('EXPIRE', pool .. ':idem:' .. task.idem, max_wait_s) end
put_ready(pool, ready_place(queue, task.fair, task.rank), {score, id})
redis.call('ZREM', pool .. ':asking', id)
if task.out then
  -- JSON text contains no line end.
  local told = integer(number) .. ' ' .. value .. '\n' .. actor
  append_event(pool, id, task.gen, attempt_number(task.fails, task.deaths), 'answered', told)
end
increment_counters(pool, now, {answered = 1})
return {'answered'}
