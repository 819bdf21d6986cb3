-- Flows: a task runs after others of its flow (protocol rule 40). `after:ID` has its predecessors that have not ended, each with 1
-- if the task runs also after their failure, else 0. The task names all of them in `after`, those with a `+` behind. A
-- predecessor names its followers in `followers`, and in `joined`, behind a `+`, for how many seconds it is kept.
--@include time: day_s, integer
--@include envelope: skill_queue
--@include record: read_task, rank_of
--@include queue: put_due
--@include lane: join_lane
--@include share: ready_place

-- Returns the follower at a place of the field `followers`, or nil. Each takes 36 characters and a space.
local function follower_at(followers, place)
  local id = string.sub(followers, 37 * place - 36, 37 * place - 1)
  return #id == 36 and id or nil
end

-- Removes a task that does not wait for predecessors any longer from `after`, and drops its list.
local function leave_following(pool, id)
  redis.call('ZREM', pool .. ':after', id)
  redis.call('UNLINK', pool .. ':after:' .. id)
end

-- Puts a task whose predecessors have ended into its place: the queue, the end of its lane, or `scheduled` until its delay has
-- passed. `due` says since when it is ready.
local function release_follower(pool, ending, id, keep_s)
  local task_key = pool .. ':task:' .. id
  if redis.call('TYPE', task_key)['ok'] ~= 'hash' then return end
  local task = read_task(task_key, 'state', 'queue', 'rank', 'env', 'fair', 'lane', 'later', 'idem')
  if task.state ~= 'awaiting_tasks' then return end
  local now_ms = math.floor(ending.now / 1000)
  local delay_ms, at_ms = string.match(task.later or '', '^(%d+) (%d+)$')
  local due = math.max(now_ms + tonumber(delay_ms or 0), tonumber(at_ms or 0))
  local state = 'ready'
  if due > now_ms then
    state = 'scheduled'
    put_due(pool, 'scheduled', {integer(due), id})
  elseif task.lane and not join_lane(pool, task.lane, id, ending.now) then
    state = 'waiting'
  else
    local place = ready_place(task.queue or skill_queue(task.env or ''), task.fair, task.rank)
    ending.turns[id] = {place = place, score = integer(rank_of(task.rank) + now_ms)}
  end
  redis.call('HSET', task_key, 'state', state, 'due', integer(due))
  keep_s = integer(keep_s + math.ceil((due - now_ms) / 1000))
  redis.call('EXPIRE', task_key, keep_s, 'GT')
  if task.idem then redis.call('EXPIRE', pool .. ':idem:' .. task.idem, keep_s, 'GT') end
  leave_following(pool, id)
end

-- Stores the list of a task that waits for predecessors: `scored` is a flat list of 0 or 1 and an id. Lists the task in
-- `after` at the time of its submit.
local function await_predecessors(pool, id, scored, born_ms, keep_s)
  redis.call('ZADD', pool .. ':after:' .. id, unpack(scored))
  redis.call('EXPIRE', pool .. ':after:' .. id, integer(keep_s + day_s))
  redis.call('ZADD', pool .. ':after', born_ms, id)
end

-- Returns the state of a predecessor, of a deleted one that in which it had ended. `deleted`: also its stub is gone.
local function state_of_predecessor(pool, id)
  local task_key = pool .. ':task:' .. id
  if redis.call('TYPE', task_key)['ok'] ~= 'hash' then return 'deleted' end
  local task = read_task(task_key, 'state', 'ended_as')
  return task.state or task.ended_as or 'deleted'
end

-- Returns the predecessors that the field `after` names: of each 1 or 0 as in `after:ID`, its id, and its state.
local function look_at_predecessors(pool, after)
  local found = {}
  for id, policy in string.gmatch(after or '', '([%x-]+)(%+?)') do
    found[#found + 1] = {policy == '+' and 1 or 0, id, state_of_predecessor(pool, id)}
  end
  return found
end
