#!lua flags=allow-oom
-- Answer the question that a task waits with, so that it goes on, at the place in its queue that it came from. The first
-- answer stands.
-- status, of the answer: answered | already who | other who value | late when | not_asking state number | invalid | unknown
-- (already: the same one came before. other: another one did. late: none had come by the deadline. not_asking: it asks
-- something else, or nothing. invalid: none of its options. Nothing changes then.)
-- answers: status, then what it names
-- repeat: answers already
local pool       = KEYS[1]             -- key: root of the pool's slot
local id         = ARGV[1]             -- str: task
local number     = tonumber(ARGV[2])   -- int: which of its questions, from 1
local value      = ARGV[3]             -- str: the answer, JSON as Python makes it
local actor      = ARGV[4]             -- str: who answers
local max_wait_s = tonumber(ARGV[5])   -- int: a task that nobody runs is kept this long
local now_arg    = ARGV[6]             -- time: test override, microseconds
--@include time: now_us, integer
--@include counter: increment_counters
--@include envelope: skill_queue
--@include record: read_task, rank_of
--@include output: append_event
--@include queue: put_ready

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local task_key = pool .. ':task:' .. id
local ask, answer, note = 'ask:' .. integer(number), 'answer:' .. integer(number), 'answered:' .. integer(number)
local found = read_task(task_key, 'state', 'asks', ask, answer, note, 'queue', 'rank', 'env', 'at', 'idem',
  'out', 'gen', 'fails', 'deaths')
local state, question, given, answered = found.state, found.ask, found.answer, found.note
if not state then return {'unknown'} end
if given == value then return {'already', answered} end
if given then return {'other', answered, given} end
if question and answered then return {'late', answered} end
if state ~= 'awaiting_input' or found.asks ~= integer(number) then return {'not_asking', state, found.asks or '0'} end

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

local queue = found.queue or skill_queue(found.env)
local score = string.match(found.at or '', ' (%d+)$') or integer(rank_of(found.rank) + now_ms)
redis.call('HSET', task_key, 'state', 'ready', answer, value, note, integer(now_ms) .. ' ' .. actor)
redis.call('EXPIRE', task_key, max_wait_s)
if found.idem then redis.call('EXPIRE', pool .. ':idem:' .. found.idem, max_wait_s) end
put_ready(pool, queue, {score, id})
redis.call('ZREM', pool .. ':asking', id)
if found.out then
  -- JSON has no line end of its own.
  local told = integer(number) .. ' ' .. value .. '\n' .. actor
  append_event(pool, id, found.gen, tonumber(found.fails or 0) + tonumber(found.deaths or 0) + 1, 'answered', told)
end
increment_counters(pool, now, {answered = 1})
return {'answered'}
