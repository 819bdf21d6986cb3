-- Lanes: tasks that run one after the other.
--@include time: integer
--@include envelope: skill_queue
--@include record: read_task, has_ended, rank_of
--@include queue: put_ready, enqueue, leave_queue

-- Put a task that becomes ready behind the others of its lane, unless it has its place there already. Answers whether it
-- has the turn and goes into its queue; else its state is `waiting`, and `pass_lane` wakes it.
local function join_lane(pool, lane, id, now)
  local lane_key = pool .. ':lane:' .. lane
  local rank = redis.call('ZRANK', lane_key, id)
  if rank then return rank == 0 end
  -- By time, for people; but never before those that are there, whatever the clock does.
  local last = redis.call('ZRANGE', lane_key, -1, -1, 'WITHSCORES')
  local score = now
  if last[2] and tonumber(last[2]) >= now then score = tonumber(last[2]) + 1 end
  redis.call('ZADD', lane_key, integer(score), id)
  return not last[1]
end

-- A member of a lane has ended: it leaves, and if it was the owner the next live one gets the turn (protocol rule 21).
-- Members whose record is gone or has ended leave with it, so many at most; the reconciler looks after the rest.
local function pass_lane(pool, ending, lane, id)
  local lane_key = pool .. ':lane:' .. lane
  local first = redis.call('ZRANGE', lane_key, 0, 1)
  local heir, gone = first[1] == id and first[2], {id}
  while heir and #gone < 100 do
    local task_key = pool .. ':task:' .. heir
    local found = read_task(task_key, 'state', 'queue', 'rank', 'env')
    local state = found.state
    if state == 'waiting' then
      redis.call('HSET', task_key, 'state', 'ready')
      local score = integer(rank_of(found.rank) + math.floor(ending.now / 1000))
      ending.turns[heir] = {queue = found.queue or skill_queue(found.env), score = score}
      break
    end
    if state and not has_ended(state) then break end
    gone[#gone + 1] = heir
    heir = redis.call('ZRANGE', lane_key, #gone, #gone)[1]
  end
  redis.call('ZREM', lane_key, unpack(gone))
end

-- Put the tasks into their queues whose turn in a lane came in this call.
local function flush_turns(pool, ending)
  if not next(ending.turns) then return end
  local ready = {}
  for id, turn in pairs(ending.turns) do enqueue(ready, turn.queue, turn.score, id) end
  ending.turns = {}
  for queue, scored in pairs(ready) do put_ready(pool, queue, scored) end
end

-- Take a ready task that ends out of its queue, or from among those whose turn in a lane came in this very call.
local function leave_ready(pool, ending, queue, id)
  if ending.turns[id] then
    ending.turns[id] = nil
  else
    leave_queue(pool, queue, id)
  end
end
