#!lua flags=allow-oom
-- Begin or go on to follow tasks: from now on their output streams also tell of their lives and of their ends. The first
-- entry of a stream that is made here tells the present state.
-- status, per id: live last_entry | ended last_entry (nothing will follow) | silent (ended, and has no stream) | unknown
-- repeat: changes nothing
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: id
--@include append_event
--@include has_ended

local answers = {}

local function last_entry(out_key)
  local last = redis.call('XREVRANGE', out_key, '+', '-', 'COUNT', 1)[1]
  return last and last[1] or '0-0'
end

local function watch(id)
  local task_key, out_key = pool .. ':task:' .. id, pool .. ':out:' .. id
  local task = redis.call('HMGET', task_key, 'state', 'gen', 'out', 'fails', 'deaths', 'at')
  local state = task[1]
  if not state then return 'unknown', '' end
  local streams = redis.call('EXISTS', out_key) == 1
  if has_ended(state) then
    if streams then return 'ended', last_entry(out_key) end
    return 'silent', ''
  end
  if not task[3] then redis.call('HSET', task_key, 'out', '0 0 -') end
  if not streams then
    -- Who waits for the turn of its lane is ready.
    local found, agent = state == 'waiting' and 'ready' or state, ''
    if state == 'assigned' then agent = string.match(task[6], '^%S+') end
    append_event(pool, id, task[2], tonumber(task[4] or 0) + tonumber(task[5] or 0) + 1, found, agent)
  end
  return 'live', last_entry(out_key)
end

for i = 1, #rows do
  answers[2 * i - 1], answers[2 * i] = watch(rows[i][1])
end
return answers
