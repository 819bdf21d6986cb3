#!lua flags=allow-oom
-- Cancel tasks: one that waits, in a queue or unread in an inbox, ends at once; one that a worker has is marked, and that
-- worker stops it at the next renewal.
-- status, per id: ended | signalled | already state | unknown
-- repeat: answers already, or signalled again
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: id
local reason  = ARGV[2]                   -- str: who or why, shown to the client
local now_arg = ARGV[3]                   -- time: test override, microseconds
--@include now_us
--@include lifetime
--@include skill_queue
--@include leave_queue
--@include take_out
--@include return_slots
--@include start_endings
--@include end_task
--@include flush_endings

local ending = start_endings(now_us(now_arg))
local answers, entries, grants, grouped = {}, {}, {}, {}

local function delivered(agent, entry)
  local inbox_key = pool .. ':inbox:' .. agent
  if grouped[agent] == nil then
    grouped[agent] = redis.call('EXISTS', inbox_key) == 1 and #redis.call('XINFO', 'GROUPS', inbox_key) > 0
  end
  return grouped[agent] and #redis.call('XPENDING', inbox_key, 'workers', entry, entry, 1) > 0
end

local function cancel(id)
  local task_key = pool .. ':task:' .. id
  local found = redis.call('HMGET', task_key, 'state', 'queue', 'ttl', 'idem', 'by', 'at', 'gen', 'env', 'out', 'fails',
    'deaths', 'cancel')
  local state = found[1]
  if not state then return 'unknown', '' end
  if state ~= 'assigned' and state ~= 'ready' and state ~= 'scheduled' then return 'already', state end
  local agent, entry
  if state == 'assigned' then
    agent, entry = string.match(found[6], '^(%S+) (%S+)')
    if delivered(agent, entry) then
      -- Asking again without a reason takes no reason away.
      if reason ~= '' or not found[12] then redis.call('HSET', task_key, 'cancel', reason) end
      return 'signalled', state
    end
  end
  local task = {idem = found[4], out = found[9], gen = found[7], fails = found[10], deaths = found[11]}
  end_task(pool, ending, id, task, 'cancelled', lifetime(found[3]), {'reason', reason})
  if state == 'ready' then
    leave_queue(pool, found[2] or skill_queue(found[8]), id)
  elseif state == 'scheduled' then
    redis.call('ZREM', pool .. ':scheduled', id)
  else
    if not entries[agent] then entries[agent] = {} end
    table.insert(entries[agent], entry)
    grants[#grants + 1] = {agent, id, found[7]}
  end
  if found[5] then redis.call('ZREM', pool .. ':expiring', id) end
  return 'ended', 'cancelled'
end

for i = 1, #rows do
  answers[2 * i - 1], answers[2 * i] = cancel(rows[i][1])
end
for agent, ids in pairs(entries) do take_out(pool, agent, ids) end
for i = 1, #grants do return_slots(pool, grants[i][1], grants[i][2], grants[i][3]) end
flush_endings(pool, ending)
return answers
