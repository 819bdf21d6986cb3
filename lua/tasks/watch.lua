#!lua flags=allow-oom
-- Turns on output streams for tasks, so that their states and ends appear there. A new stream begins with the present
-- state.
-- status, per id: live last_entry | ended last_entry (nothing follows) | silent (ended, without a stream) | unknown
-- repeat: changes nothing
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: id
--@include record: read_task, has_ended, attempt_number
--@include output: append_event

local answers = {}

local function last_entry(out_key)
  local last = redis.call('XREVRANGE', out_key, '+', '-', 'COUNT', 1)[1]
  return last and last[1] or '0-0'
end

local function watch(id)
  local task_key, out_key = pool .. ':task:' .. id, pool .. ':out:' .. id
  local task = read_task(task_key, 'state', 'gen', 'out', 'fails', 'deaths', 'at')
  local state = task.state
  if not state then return 'unknown', '' end
  local streams = redis.call('EXISTS', out_key) == 1
  if has_ended(state) then
    if streams then return 'ended', last_entry(out_key) end
    return 'silent', ''
  end
  if not task.out then redis.call('HSET', task_key, 'out', '0 0 -') end
  if not streams then
    -- Followers see a task that waits for the turn of its lane as ready.
    local shown, agent = state == 'waiting' and 'ready' or state, ''
    if state == 'assigned' then agent = string.match(task.at, '^%S+') end
    append_event(pool, id, task.gen, attempt_number(task.fails, task.deaths), shown, agent)
  end
  return 'live', last_entry(out_key)
end

for i = 1, #rows do
  answers[2 * i - 1], answers[2 * i] = watch(rows[i].id)
end
return answers
