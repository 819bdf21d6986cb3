#!lua
-- Creates tasks from a backup: up to 100 rows. A waiting task returns to its place; one that was assigned is ready again
-- in a new generation, which counts neither an attempt nor a death, and its record notes that. An ended one is stored, and so is
-- the stub of a deleted one, which does not count.
-- returns: number of created tasks, of those that exist already, and of those that ended because they were cancelled; or
-- nothing: a later run of the restore has replaced this one
-- repeat: creates nothing
local pool       = KEYS[1]                   -- key: root of the pool's slot
local rows       = cmsgpack.unpack(ARGV[1])  -- rows: id left_ms fields score turn began digest children children_ms dead_ms
local origin     = ARGV[2]                   -- str: the backup, for people
local keep_ms    = tonumber(ARGV[3])         -- int: lifetime of records that have none
local dead_ttl_s = tonumber(ARGV[4])         -- int: minimum lifetime of dead letters
local mark       = ARGV[5]                   -- str: mark of the run
local now_arg    = ARGV[6]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include restoring: goes_on
--@include envelope: skill_queue
--@include record: read_task, has_ended, is_waiting, rank_of, next_generation, attempt_number
--@include history: add_attempt
--@include lane: restore_member
--@include queue: enqueue, start_waiting, flush_waiting
--@include share: ready_place
--@include ending: start_endings, tell_follower, flush_endings, index_dead
--@include follow: look_at_predecessors, await_predecessors
--@include held_bytes: collect_bytes
--@include reclaim: reclaim_task, requeue_task

if not goes_on(pool, mark) then return {} end
local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local waiting, ending = start_waiting(), start_endings(now)
local created, known, cancelled, ends = 0, 0, 0, {}

-- Calls a command with a key and many values, 500 at a time.
local function store_all(command, key, values)
  for first = 1, #values, 500 do
    redis.call(command, key, unpack(values, first, math.min(first + 499, #values)))
  end
end

-- Returns an assigned task to its queue, and notes in its record that it may have run.
local function give_back(row, task_key)
  local task = read_task(task_key, 'gen', 'at', 'fails', 'deaths', 'ran')
  local agent, entry = string.match(task.at, '^(%S+) (%S+) %S+$')
  local fields = {'restored', integer(now_ms) .. ' ' .. (row.began and 'running' or 'assigned') .. ' ' .. origin}
  if row.began then
    -- The attempt has started in time; later ones have no deadline.
    redis.call('HDEL', task_key, 'by')
    add_attempt(task_key, fields, task.ran, 'interrupted', attempt_number(task.fails, task.deaths), task.gen, 0, now_ms,
      agent, '-', 'restored from ' .. origin)
  end
  redis.call('HSET', task_key, unpack(fields))
  local taken = reclaim_task(pool, ending, agent, entry, row.id, nil, false, {}, dead_ttl_s, '')
  if not taken then
    cancelled = cancelled + 1
    return
  end
  local generation = integer(next_generation(taken.gen, now_ms))
  requeue_task(pool, waiting, row.id, taken, generation, now, 'restored from ' .. origin)
end

-- Lets a task wait for all of its predecessors; those that are there and have ended are told below, the others when they come.
local function follow(id, task_key, born_ms)
  local predecessors, scored = look_at_predecessors(pool, redis.call('HGET', task_key, 'after')), {}
  for i = 1, #predecessors do
    --@row one: policy id state
    local one = predecessors[i]
    scored[2 * i - 1], scored[2 * i] = one.policy, one.id
    if has_ended(one.state) then ends[#ends + 1] = {one.id, one.state, id} end
  end
  if #scored > 0 then await_predecessors(pool, id, scored, born_ms, keep_ms / 1000) end
end

-- Notes an ended task whose followers may be there.
local function tell(id, task_key, state)
  local keep_s = string.match(redis.call('HGET', task_key, 'joined') or '', '%+(%d+)')
  if not keep_s then return end
  ending.followed = ending.followed or {}
  table.insert(ending.followed, {id, state, 1, tonumber(keep_s)})
end

local function put_in_place(row, task_key)
  local task = read_task(task_key, 'state', 'gen', 'at', 'queue', 'rank', 'due', 'by', 'env', 'fair')
  local state = task.state
  if state == 'joining' then
    -- Its next attempt registers the join again.
    redis.call('HSET', task_key, 'state', 'ready')
    state = 'ready'
  end
  if is_waiting(state) then collect_bytes(pool, waiting.bytes, row.id, task.queue, task.env, 1) end
  if state == 'assigned' then
    give_back(row, task_key)
  elseif state == 'ready' then
    local score = row.score
    if score == '' then
      local since = math.max(tonumber(task.gen), tonumber(task.due or 0))
      score = string.match(task.at or '', ' (%d+)$') or integer(rank_of(task.rank) + since)
    end
    enqueue(waiting.ready, ready_place(task.queue or skill_queue(task.env), task.fair, task.rank), score, row.id)
  elseif state == 'scheduled' then
    waiting.scheduled[#waiting.scheduled + 1] = task.due
    waiting.scheduled[#waiting.scheduled + 1] = row.id
  elseif state == 'awaiting_input' then
    local due = tonumber(task.due or 0)
    waiting.asking[#waiting.asking + 1] = due > 0 and integer(due) or '+inf'
    waiting.asking[#waiting.asking + 1] = row.id
  elseif state == 'awaiting_tasks' then
    follow(row.id, task_key, task.gen)
  elseif state == 'dead' then
    index_dead(pool, row.id, row.dead_ms, dead_ttl_s)
  end
  if has_ended(state) then tell(row.id, task_key, state) end
  if task.by and is_waiting(state) then
    waiting.expiring[#waiting.expiring + 1] = task.by
    waiting.expiring[#waiting.expiring + 1] = row.id
  end
end

for i = 1, #rows do
  local row = rows[i]
  local task_key = pool .. ':task:' .. row.id
  if redis.call('EXISTS', task_key) == 1 then
    -- The stub of a deleted task does not count.
    known = known + redis.call('HEXISTS', task_key, 'state')
  else
    local left_ms = row.left_ms > 0 and row.left_ms or keep_ms
    store_all('HSET', task_key, row.fields)
    redis.call('PEXPIRE', task_key, integer(left_ms))
    local found = read_task(task_key, 'state', 'lane', 'idem', 'gen', 'due')
    if row.digest ~= '' and found.idem then
      redis.call('SET', pool .. ':idem:' .. found.idem, row.id .. ' ' .. row.digest, 'PX', integer(left_ms))
    end
    local children_key = pool .. ':children:' .. row.id
    if #row.children > 0 and redis.call('EXISTS', children_key) == 0 then
      store_all('RPUSH', children_key, row.children)
      redis.call('PEXPIRE', children_key, integer(math.max(row.children_ms, left_ms)))
    end
    if found.lane and (row.turn ~= '' or is_waiting(found.state) and found.state ~= 'scheduled' and found.state ~= 'awaiting_tasks') then
      local since = math.max(tonumber(found.gen), tonumber(found.due or 0))
      restore_member(pool, found.lane, row.turn ~= '' and row.turn or integer(since * 1000), row.id)
    end
    -- The stub of a deleted task has no place.
    if found.state then
      put_in_place(row, task_key)
      created = created + 1
    end
  end
end
flush_waiting(pool, waiting)
for i = 1, #ends do
  --@row one: id state follower
  local one = ends[i]
  tell_follower(pool, ending, one.id, one.state, one.follower, keep_ms / 1000)
end
flush_endings(pool, ending)
return {created, known, cancelled}
