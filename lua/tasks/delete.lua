#!lua flags=allow-oom
-- Deletes ended tasks: dead letter, output, idempotency key, list of children, places in the lists of their session and
-- tags, record. A stub stays for 5 minutes, so that a late repeat of their submit creates no new task (protocol rule 22);
-- with the key for as long as a parent that joins it may wait (protocol rule 37). It says in which state the task had ended,
-- because its followers may not have been told yet (protocol rule 40).
-- status, per id: deleted | refused state (it has not ended; nothing changed) | unknown
-- repeat: returns deleted while the stub exists, then unknown
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: id
local now_arg = ARGV[2]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include record: read_task, has_ended
--@include tag: tags_of
--@include join: kept_for

local stub_s = 300
local now_text = integer(math.floor(now_us(now_arg) / 1000))
local dead_key = pool .. ':dead'

-- Returns the lifetime of the stub. The next attempt of a parent that has not ended, and a repeated submit of its flow, must find
-- that this task is gone, and not submit it again.
local function lifetime_of_stub(joined)
  local keep_s = math.max(stub_s, tonumber(string.match(joined or '', '%+(%d+)') or 0))
  for parent in string.gmatch(joined or '', '%x+%-[%x-]+') do keep_s = math.max(keep_s, kept_for(pool, parent) or 0) end
  return keep_s
end

local function delete(id)
  local task_key, out_key, children_key = pool .. ':task:' .. id, pool .. ':out:' .. id, pool .. ':children:' .. id
  local task = read_task(task_key, 'state', 'idem', 'deleted', 'session', 'joined')
  local state, idem, session_key = task.state, task.idem, task.session and pool .. ':session:' .. task.session
  if task.deleted then return 'deleted', '' end
  if not state then return 'unknown', '' end
  if not has_ended(state) then return 'refused', state end
  local idem_key = idem and pool .. ':idem:' .. idem
  local holder = idem_key and redis.call('GET', idem_key)
  local fields, envelope = redis.call('HKEYS', task_key), redis.call('HGET', task_key, 'env')
  local tags = envelope and tags_of(envelope) or {}
  local keep_s = lifetime_of_stub(task.joined)
  redis.call('ZREM', dead_key, id)
  redis.call('UNLINK', out_key, children_key)
  if session_key then redis.call('LREM', session_key, 1, id) end
  for i = 1, #tags do redis.call('ZREM', pool .. ':tag:' .. tags[i], id) end
  -- The key may have expired, and a later task may own it.
  if holder and string.match(holder, '^%S+') == id then
    if keep_s == stub_s then redis.call('UNLINK', idem_key) else redis.call('EXPIRE', idem_key, keep_s) end
  end
  redis.call('HSET', task_key, 'deleted', now_text, 'ended_as', state)
  for first = 1, #fields, 1000 do
    redis.call('HDEL', task_key, unpack(fields, first, math.min(first + 999, #fields)))
  end
  redis.call('EXPIRE', task_key, keep_s)
  return 'deleted', state
end

local answers = {}
for i = 1, #rows do
  answers[2 * i - 1], answers[2 * i] = delete(rows[i].id)
end
return answers
