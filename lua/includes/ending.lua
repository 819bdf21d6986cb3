-- Ends tasks.
--@include time: integer
--@include counter: increment_counters
--@include notify: add_hint
--@include output: append_event
--@include lane: pass_lane, flush_turns
--@include family: note_activity
--@include held_bytes: collect_bytes, add_bytes
--@include share: free_place, wake_flows
--@include join: leave_joins, flush_joins
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
  if task.joined then ttl_s = leave_joins(pool, ending, id, task.joined, state ~= 'succeeded', ttl_s) end
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

-- Stores what a call collected: joins, turns of lanes, one event, one reply entry per waiting client, activity of sessions,
-- bytes of queues, counters.
local function flush_endings(pool, ending)
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
