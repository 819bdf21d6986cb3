-- Lanes: tasks that run one after another.
--@include time: integer
--@include envelope: skill_queue
--@include record: read_task, has_ended, rank_of
--@include queue: put_ready, enqueue, leave_queue
--@include share: ready_place

-- Adds a task to the end of its lane, unless it is a member. Returns whether the task has the turn; otherwise its state
-- is `waiting`, and `pass_lane` wakes it.
local function join_lane(pool, lane, id, now)
  local lane_key = pool .. ':lane:' .. lane
  local rank = redis.call('ZRANK', lane_key, id)
  if rank then return rank == 0 end
  -- Scores are times, but never below those of members, because the clock may step back.
  local last = redis.call('ZRANGE', lane_key, -1, -1, 'WITHSCORES')
  local score = now
  if last[2] and tonumber(last[2]) >= now then score = tonumber(last[2]) + 1 end
  redis.call('ZADD', lane_key, integer(score), id)
  return not last[1]
end

-- Adds a task from a backup to its lane, at the place that it had.
local function restore_member(pool, lane, score, id)
  redis.call('ZADD', pool .. ':lane:' .. lane, score, id)
end

-- Removes an ended task from its lane and gives the turn to the next live member (protocol rule 21). Also removes up to
-- 99 members that have ended or have no record; the reconciler removes the rest.
local function pass_lane(pool, ending, lane, id)
  local lane_key = pool .. ':lane:' .. lane
  local first = redis.call('ZRANGE', lane_key, 0, 1)
  local heir, gone = first[1] == id and first[2], {id}
  while heir and #gone < 100 do
    local task_key = pool .. ':task:' .. heir
    local task = read_task(task_key, 'state', 'queue', 'rank', 'env', 'fair')
    local state = task.state
    if state == 'waiting' then
      redis.call('HSET', task_key, 'state', 'ready')
      local score = integer(rank_of(task.rank) + math.floor(ending.now / 1000))
      ending.turns[heir] = {place = ready_place(task.queue or skill_queue(task.env), task.fair, task.rank), score = score}
      break
    end
    if state and not has_ended(state) then break end
    gone[#gone + 1] = heir
    heir = redis.call('ZRANGE', lane_key, #gone, #gone)[1]
  end
  redis.call('ZREM', lane_key, unpack(gone))
end

-- Queues the tasks that got the turn of their lanes in this call.
local function flush_turns(pool, ending)
  local ready = {}
  for id, turn in pairs(ending.turns) do enqueue(ready, turn.place, turn.score, id) end
  ending.turns = {}
  for place, scored in pairs(ready) do put_ready(pool, place, scored) end
end

-- Removes a ready task that ends from its queue, or from the tasks that got a turn in this call. `flow` is that of a task
-- with a key.
local function leave_ready(pool, ending, queue, id, flow)
  if ending.turns[id] then
    ending.turns[id] = nil
  else
    leave_queue(pool, queue, id, flow)
  end
end
