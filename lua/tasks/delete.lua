#!lua flags=allow-oom
-- Deletes ended tasks: dead letter, output, idempotency key, list of children, places in the lists of their session and
-- tags, record. A stub stays for 5 minutes, so that a late repeat of their submit creates no new task (protocol rule 22);
-- with the key for a day if a task joins it (protocol rule 37).
-- status, per id: deleted | refused state (it has not ended; nothing changed) | unknown
-- repeat: returns deleted while the stub exists, then unknown
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: id
local now_arg = ARGV[2]                   -- time: test override, microseconds
--@include time: day_s, now_us, integer
--@include record: read_task
--@include tag: tags_of

local stub_s = 300
local now_text = integer(math.floor(now_us(now_arg) / 1000))
local dead_key = pool .. ':dead'
local ended = {succeeded = true, dead = true, cancelled = true, expired = true}

-- Returns whether a task that has not ended joins this one: its next attempt must find that this one is gone, and not submit
-- it again.
local function is_joined(joined)
  for parent in string.gmatch(joined or '', '%S+') do
    local state = redis.call('HGET', pool .. ':task:' .. parent, 'state')
    if state and not ended[state] then return true end
  end
  return false
end

local function delete(id)
  local task_key, out_key, children_key = pool .. ':task:' .. id, pool .. ':out:' .. id, pool .. ':children:' .. id
  local task = read_task(task_key, 'state', 'idem', 'deleted', 'session', 'joined')
  local state, idem, session_key = task.state, task.idem, task.session and pool .. ':session:' .. task.session
  if task.deleted then return 'deleted', '' end
  if not state then return 'unknown', '' end
  if not ended[state] then return 'refused', state end
  local idem_key = idem and pool .. ':idem:' .. idem
  local holder = idem_key and redis.call('GET', idem_key)
  local fields, envelope = redis.call('HKEYS', task_key), redis.call('HGET', task_key, 'env')
  local tags = envelope and tags_of(envelope) or {}
  local keep_s = is_joined(task.joined) and day_s or stub_s
  redis.call('ZREM', dead_key, id)
  redis.call('UNLINK', out_key, children_key)
  if session_key then redis.call('LREM', session_key, 1, id) end
  for i = 1, #tags do redis.call('ZREM', pool .. ':tag:' .. tags[i], id) end
  -- The key may have expired, and a later task may own it.
  if holder and string.match(holder, '^%S+') == id then
    if keep_s == stub_s then redis.call('UNLINK', idem_key) else redis.call('EXPIRE', idem_key, keep_s) end
  end
  redis.call('HSET', task_key, 'deleted', now_text)
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
