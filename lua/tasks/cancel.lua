#!lua flags=allow-oom
-- Cancel tasks: one that waits ends at once, one that runs is marked and its worker stops it at the next renewal.
-- status, per id: ended | signalled | already state | unknown
-- repeat: answers already, or signalled again
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: id
local reason  = ARGV[2]                   -- str: who or why, shown to the client
local now_arg = ARGV[3]                   -- time: test override, microseconds
--@include now_us
--@include lifetime
--@include drop_ready
--@include start_endings
--@include end_task
--@include flush_endings

local ending = start_endings(now_us(now_arg))
local answers = {}

local function cancel(id)
  local task_key = pool .. ':task:' .. id
  local found = redis.call('HMGET', task_key, 'state', 'queue', 'ttl', 'reply', 'idem', 'by')
  local state, queue = found[1], found[2]
  if not state then return 'unknown', '' end
  if state == 'assigned' then
    redis.call('HSET', task_key, 'cancel', reason)
    return 'signalled', state
  end
  if state ~= 'ready' and state ~= 'scheduled' then return 'already', state end
  end_task(pool, ending, id, {reply = found[4], idem = found[5]}, 'cancelled', lifetime(found[3]), {'reason', reason})
  if state == 'ready' then
    drop_ready(pool, queue, {id})
    local agent = string.match(queue, '^agent:(.*)$')
    if agent then redis.call('ZREM', pool .. ':parked:' .. agent, id) end
  else
    redis.call('ZREM', pool .. ':scheduled', id)
  end
  if found[6] then redis.call('ZREM', pool .. ':expiring', id) end
  return 'ended', 'cancelled'
end

for i = 1, #rows do
  answers[2 * i - 1], answers[2 * i] = cancel(rows[i][1])
end
flush_endings(pool, ending)
return answers
