-- Queues of ready tasks, and the sets of tasks that wait for a time.
--@include notify: notify_supervisor, notify_of_room
--@include record: read_task
--@include desired: suspended_scopes
--@include key: has_type, set_aside
--@include held_bytes: add_bytes
--@include share: join_flow, leave_flow, wake_flows

-- Adds to a sorted set: `scored` is a flat list score, id, score, id ... of any length. Returns how many are new.
local function add_scored(key, scored)
  if #scored <= 1000 then return redis.call('ZADD', key, unpack(scored)) end
  local added = 0
  for first = 1, #scored, 1000 do
    added = added + redis.call('ZADD', key, unpack(scored, first, math.min(first + 999, #scored)))
  end
  return added
end

-- Adds tasks to one queue: `scored` is a flat list score, id, score, id ... Notifies supervisors
-- when the queue was empty; otherwise they know of it (protocol rule 5). `was_empty` is nil for a caller that does not know
-- it. Returns how many were not in the queue.
local function add_to_queue(pool, queue, scored, was_empty)
  local queue_key = pool .. ':queue:' .. queue
  if was_empty == nil then was_empty = redis.call('EXISTS', queue_key) == 0 end
  -- A queue that is not listed, because a client wrote into it or Redis lost the list, is as unknown as an empty one.
  if not was_empty then was_empty = redis.call('SISMEMBER', pool .. ':queues', queue) == 0 end
  local added = add_scored(queue_key, scored)
  if was_empty then
    redis.call('SADD', pool .. ':queues', queue)
    notify_supervisor(pool, 'queue:' .. queue)
  end
  return added
end

-- Adds ready tasks to the place of `ready_place`: a queue, or behind a `=` the flow of a key. `scored` as above.
local function put_ready(pool, place, scored)
  -- 61 is '='.
  if string.byte(place) == 61 then
    join_flow(pool, string.sub(place, 2), scored)
  else
    add_to_queue(pool, place, scored)
  end
end

-- Removes tasks from one queue and updates the index of non-empty queues. Returns whether the queue holds more.
local function remove_from_queue(pool, queue, ids)
  local queue_key = pool .. ':queue:' .. queue
  redis.call('ZREM', queue_key, unpack(ids))
  if redis.call('EXISTS', queue_key) == 1 then return true end
  redis.call('SREM', pool .. ':queues', queue)
  return false
end

-- Collects a task for its queue, or the scope that holds it: `ready` maps it to a flat list score, id, score, id ...
local function enqueue(ready, queue, score, id)
  local scored = ready[queue]
  if not scored then
    scored = {}
    ready[queue] = scored
  end
  scored[#scored + 1] = score
  scored[#scored + 1] = id
end

-- Adds tasks of one queue to its suspects, which wait until a worker process has room for them (protocol rule 8):
-- `scored` is a flat list score, id, score, id ...
local function put_suspects(pool, queue, scored)
  redis.call('ZADD', pool .. ':suspects:' .. queue, unpack(scored))
  redis.call('SADD', pool .. ':suspects', queue)
end

-- Removes tasks from the suspects of one queue and updates the index of queues with suspects. Returns how many were there.
local function remove_suspects(pool, queue, ids)
  local suspects_key = pool .. ':suspects:' .. queue
  local removed = redis.call('ZREM', suspects_key, unpack(ids))
  if redis.call('EXISTS', suspects_key) == 0 then redis.call('SREM', pool .. ':suspects', queue) end
  return removed
end

-- Adds tasks to those that are held back for a scope. A client may have written a key of another type.
local function put_held(pool, types, scope, scored, now)
  set_aside(pool, types, 'held:' .. scope, 'zset', now)
  set_aside(pool, types, 'held', 'set', now)
  add_scored(pool .. ':held:' .. scope, scored)
  redis.call('SADD', pool .. ':held', scope)
end

-- The queues of which this call has told supervisors that a suspect left.
local slots_told = {}

-- Notifies supervisors of the agents that kept a slot free for a suspect that left a queue, if tasks wait for these: tasks
-- of any of their queues (protocol rule 6). Of more than 100 agents with a skill, supervisors check all.
local function notify_of_kept_slots(pool, queue)
  if slots_told[queue] or redis.call('EXISTS', pool .. ':queues', pool .. ':refused') == 0 then return end
  slots_told[queue] = true
  local skill = string.match(queue, '^skill:(.*)$')
  local names = skill and redis.call('ZRANGE', pool .. ':skills:' .. skill, 0, 100) or {string.sub(queue, 7)}
  if #names > 100 then
    notify_supervisor(pool, 'agents')
  else
    for i = 1, #names do notify_of_room(pool, names[i]) end
  end
end

-- Removes one ready task from its queue, from the suspects of the queue, from the parked tasks of its agent, or from the
-- tasks that are held back. `flow` is that of a task with a key.
local function leave_queue(pool, queue, id, flow)
  if flow and leave_flow(pool, flow, id) then return end
  remove_from_queue(pool, queue, {id})
  if redis.call('EXISTS', pool .. ':suspects') == 1 and remove_suspects(pool, queue, {id}) > 0 then
    notify_of_kept_slots(pool, queue)
  end
  local agent = string.match(queue, '^agent:(.*)$')
  if agent then redis.call('ZREM', pool .. ':parked:' .. agent, id) end
  if redis.call('EXISTS', pool .. ':held') == 0 then return end
  local task = read_task(pool .. ':task:' .. id, 'skill', 'env', 'refused', 'need')
  local scopes = suspended_scopes(queue, task.skill, id, task.env, task.refused, task.need)
  for i = 1, #scopes do
    local held_key = pool .. ':held:' .. scopes[i]
    -- A client may have written a key of another type.
    if has_type({}, held_key, 'zset') then redis.call('ZREM', held_key, id) end
  end
end

-- Adds tasks to `scheduled`, `asking`, `joining` or `expiring`: `scored` is a flat list due_ms, id, due_ms, id ... Notifies
-- supervisors when the earliest due time changed, because the promoter sleeps until it.
local function put_due(pool, name, scored)
  local due_key = pool .. ':' .. name
  local head = redis.call('ZRANGE', due_key, 0, 0)
  add_scored(due_key, scored)
  if redis.call('ZRANGE', due_key, 0, 0)[1] ~= head[1] then notify_supervisor(pool, 'scheduled') end
end

-- Returns a collector for the tasks of one call that will wait; `flush_waiting` stores them.
local function start_waiting()
  return {ready = {}, scheduled = {}, expiring = {}, asking = {}, joining = {}, spread = 0, bytes = {}}
end

-- Stores collected tasks in their queues, `scheduled`, `asking`, `joining` and `expiring`, and the bytes of those that wait again.
local function flush_waiting(pool, waiting)
  for queue, scored in pairs(waiting.ready) do put_ready(pool, queue, scored) end
  if #waiting.scheduled > 0 then put_due(pool, 'scheduled', waiting.scheduled) end
  if #waiting.asking > 0 then put_due(pool, 'asking', waiting.asking) end
  if #waiting.joining > 0 then put_due(pool, 'joining', waiting.joining) end
  if #waiting.expiring > 0 then put_due(pool, 'expiring', waiting.expiring) end
  if next(waiting.bytes) then add_bytes(pool, waiting.bytes) end
  if waiting.freed then wake_flows(pool, waiting.freed) end
end
