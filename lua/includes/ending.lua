-- Ends tasks.
--@include time: integer
--@include counter: increment_counters
--@include notify: add_hint, notify_supervisor
--@include output: append_event
--@include lane: pass_lane, flush_turns
--@include family: note_activity
--@include held_bytes: collect_bytes, add_bytes
--@include share: free_place, wake_flows
--@include join: leave_joins, flush_joins
--@include follow: follower_at, leave_following, release_follower
--@include record: read_task, lifetime
--@include budget: flush_budgets

-- Returns the client that waits for the end of a task: the last group of digits of the id, if it says so (`TaskIds` in
-- orchestrator/core/ids.py); else nil.
local function waiting_client(id)
  -- 56 is '8', and a to f come behind it.
  if (string.byte(id, 25) or 0) >= 56 then return string.sub(id, 25) end
  return nil
end

-- Returns a collector for the tasks that end in one call; `flush_endings` stores it.
local function start_endings(now)
  return {now = now, now_text = integer(math.floor(now / 1000)), counts = {}, replies = {}, events = {}, inline_bytes = 0,
    turns = {}, sessions = {}, bytes = {}}
end

local reply_inline_bytes = 65536

-- Ends a task: state, time, lifetime, idempotency key, output, lane, share, joins. `task` has idem, lane, fair, session,
-- joined and out, and for the output gen, fails and deaths. `fields` is a flat list of fields to store; a success has `result` instead,
-- and maybe `envelope`, which takes the place of the stored one. With `at`, the record is plain and is written again, so that
-- its hash table becomes a listpack.
-- Collects replies, events and counters in `ending`.
local function end_task(pool, ending, id, task, state, ttl_s, fields, result, envelope, at)
  local task_key = pool .. ':task:' .. id
  if task.joined then ttl_s = leave_joins(pool, ending, id, task.joined, state, ttl_s) end
  if at then
    redis.call('DEL', task_key)
    redis.call('HSET', task_key, 'gen', task.gen, 'at', at, 'state', state, 'ended', ending.now_text, 'env', envelope, 'result', result)
  elseif envelope then
    redis.call('HSET', task_key, 'state', state, 'ended', ending.now_text, 'env', envelope, 'result', result)
  elseif result then
    redis.call('HSET', task_key, 'state', state, 'ended', ending.now_text, 'result', result)
  else
    redis.call('HSET', task_key, 'state', state, 'ended', ending.now_text, unpack(fields))
  end
  redis.call('EXPIRE', task_key, ttl_s)
  if task.idem then redis.call('EXPIRE', pool .. ':idem:' .. task.idem, ttl_s) end
  ending.counts[state] = (ending.counts[state] or 0) + 1
  local letter = string.sub(state, 1, 1)
  local events = ending.events
  events[#events + 1] = id
  events[#events + 1] = letter
  local client = waiting_client(id)
  if client then
    local replies = ending.replies[client]
    if not replies then
      replies = {}
      ending.replies[client] = replies
    end
    replies[#replies + 1] = id
    -- First letter: the state. Upper case: the results of this call exceed a reply; the client reads the task.
    if not result then
      replies[#replies + 1] = letter
    elseif ending.inline_bytes + #result > reply_inline_bytes then
      replies[#replies + 1] = 'S'
    else
      ending.inline_bytes = ending.inline_bytes + #result
      replies[#replies + 1] = 's' .. result
    end
  end
  if task.out then
    -- A death is already counted, a failure not yet: this is the attempt that ends, or the next one of a waiting task.
    local attempt = tonumber(task.fails or 0) + tonumber(task.deaths or 0) + (task.died and 0 or 1)
    local reason = ''
    for i = 1, result and 0 or #fields, 2 do
      if fields[i] == 'reason' then reason = fields[i + 1] end
    end
    append_event(pool, id, task.gen, attempt, state, reason)
  end
  if task.session then ending.sessions[task.session] = true end
  if task.lane then pass_lane(pool, ending, task.lane, id) end
  if task.fair then free_place(pool, ending, task.fair, id) end
end

-- Notes that a task does not wait any longer; `queue` is false for that of its skill.
local function stop_waiting(pool, ending, id, queue, envelope)
  collect_bytes(pool, ending.bytes, id, queue, envelope, -1)
end

-- Cancels a task because one of its predecessors failed, unless it does not wait for them any longer.
local function cancel_follower(pool, ending, id, predecessor, its_state)
  local task_key = pool .. ':task:' .. id
  if redis.call('TYPE', task_key)['ok'] ~= 'hash' then return false end
  local task = read_task(task_key, 'state', 'queue', 'ttl', 'idem', 'env', 'out', 'gen', 'fails', 'deaths', 'session', 'by', 'joined', 'was')
  if task.state ~= 'awaiting_tasks' then return false end
  local words = {dead = 'is a dead letter', cancelled = 'was cancelled', expired = 'has expired', deleted = 'was deleted'}
  local reason = 'task ' .. predecessor .. ', after which it runs, ' .. words[its_state]
  local ended = {idem = task.idem, session = task.session, out = task.out, gen = task.gen, fails = task.fails, deaths = task.deaths,
    joined = task.joined}
  end_task(pool, ending, id, ended, 'cancelled', lifetime(task.ttl, nil, task.idem), {'reason', reason})
  stop_waiting(pool, ending, id, task.queue, task.env)
  leave_following(pool, id)
  if task.by then redis.call('ZREM', pool .. ':expiring', id) end
  -- An earlier attempt may have children, which `cancel_children` cancels; the supervisor learns of the note.
  if task.was and redis.call('EXISTS', pool .. ':children:' .. id) == 1 then
    redis.call('RPUSH', pool .. ':cancelling', id .. ' 0 with task ' .. id .. ': ' .. reason)
    ending.passes = true
  end
  return true
end

-- Removes an ended task from the list of one follower: releases the follower if no other is left, or cancels it if the failure
-- of the task does so. Returns whether it was cancelled.
local function tell_follower(pool, ending, id, state, follower, keep_s)
  local after_key = pool .. ':after:' .. follower
  if redis.call('TYPE', after_key)['ok'] ~= 'zset' then return false end
  if state ~= 'succeeded' then
    local runs_anyway = redis.call('ZSCORE', after_key, id)
    if not runs_anyway then return false end
    if runs_anyway == '0' then return cancel_follower(pool, ending, follower, id, state) end
  end
  if redis.call('ZREM', after_key, id) == 1 and redis.call('EXISTS', after_key) == 0 then
    release_follower(pool, ending, follower, keep_s)
  end
  return false
end

-- Followers that one call looks at.
local most_followers = 2000

-- Followers that one call cancels.
local most_cancelled = 500

-- Tells the followers of the tasks that ended in this call, also of those that it cancels here. Leaves a note of the rest, which
-- `promote` tells. A note that is not stored, because the key has another type, costs a sweep of the reconciler.
local function tell_followers(pool, ending)
  local followed, at, looked, cancelled = ending.followed, 1, 0, 0
  local kind = redis.call('TYPE', pool .. ':ends')['ok']
  local is_list = kind == 'list' or kind == 'none'
  --@row one: id state place keep_s
  while followed[at] do
    local one = followed[at]
    local may_look, place, follower = looked < most_followers and cancelled < most_cancelled, one.place, true
    local followers = may_look and redis.call('HGET', pool .. ':task:' .. one.id, 'followers') or ''
    if may_look then follower = follower_at(followers, place) end
    while follower and looked < most_followers and cancelled < most_cancelled do
      if tell_follower(pool, ending, one.id, one.state, follower, one.keep_s) then cancelled = cancelled + 1 end
      looked, place = looked + 1, place + 1
      follower = follower_at(followers, place)
    end
    if follower then
      if is_list then redis.call('RPUSH', pool .. ':ends', one.id .. ' ' .. one.state .. ' ' .. integer(place) .. ' ' .. integer(one.keep_s)) end
      ending.passes = true
    end
    at = at + 1
  end
  ending.followed = nil
  if ending.passes then notify_supervisor(pool, 'scheduled') end
end

-- Stores what a call collected: followers, joins, turns of lanes, one event, one reply entry per waiting client, activity of sessions,
-- bytes of queues, counters.
local function flush_endings(pool, ending)
  if ending.followed then tell_followers(pool, ending) end
  if ending.joins then flush_joins(pool, ending) end
  if next(ending.turns) then flush_turns(pool, ending) end
  if ending.freed then wake_flows(pool, ending.freed) end
  if #ending.events > 0 then
    -- The maximum of the setting `results.max_events`; the supervisor trims to its value.
    add_hint(pool .. ':events', 20000, unpack(ending.events))
  end
  for client, replies in pairs(ending.replies) do
    local replies_key = pool .. ':replies:' .. client
    add_hint(replies_key, 1000, unpack(replies))
    redis.call('EXPIRE', replies_key, 3600)
  end
  if next(ending.sessions) then note_activity(pool, ending.sessions, ending.now / 1000) end
  if next(ending.bytes) then add_bytes(pool, ending.bytes) end
  if ending.budgets then flush_budgets(pool, ending.budgets) end
  increment_counters(pool, ending.now, ending.counts)
end

-- Indexes a dead letter by time, and drops index entries whose tasks have expired.
local function index_dead(pool, id, now_ms, dead_ttl_s)
  local dead_key = pool .. ':dead'
  redis.call('ZADD', dead_key, integer(now_ms), id)
  redis.call('ZREMRANGEBYSCORE', dead_key, '-inf', integer(now_ms - dead_ttl_s * 1000))
  redis.call('EXPIRE', dead_key, dead_ttl_s)
end
