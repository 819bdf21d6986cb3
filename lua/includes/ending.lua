-- Ends tasks.
--@include time: integer
--@include counter: increment_counters
--@include output: append_event
--@include lane: pass_lane, flush_turns

-- Who hears of the end of a task: the maker of its id, the last group of digits, if that says that it listens
-- (`TaskIds` in orchestrator/core/ids.py); else nil.
local function waiting_client(id)
  -- 56 is '8', and a to f come behind it.
  if (string.byte(id, 25) or 0) >= 56 then return string.sub(id, 25) end
  return nil
end

-- What the tasks that end in one call share.
local function start_endings(now)
  return {now = now, now_text = integer(math.floor(now / 1000)), counts = {}, replies = {}, events = {}, inline_bytes = 0,
    turns = {}}
end

local reply_inline_bytes = 65536

-- The one way a task ends: state, time, lifetime, idempotency key, counter, event, reply, last entry of its output, lane.
-- `task` holds the fields that the caller read (idem, lane, out, and for the output gen, fails, deaths); `fields` is a
-- flat list of further fields to store, `result` that of a success, which has none. What is shared by a batch (replies, events, counters) is gathered in `ending` and
-- written by `flush_endings`.
local function end_task(pool, ending, id, task, state, ttl_s, fields, result)
  local task_key = pool .. ':task:' .. id
  if result then
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
    -- First letter: the state; upper case: the results of this call are too large for a reply, read it from the task.
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
    -- A death was counted before, a failure is not yet: it is the attempt that ends, or the next one of a waiting task.
    local attempt = tonumber(task.fails or 0) + tonumber(task.deaths or 0) + (task.died and 0 or 1)
    local reason = ''
    for i = 1, result and 0 or #fields, 2 do
      if fields[i] == 'reason' then reason = fields[i + 1] end
    end
    append_event(pool, id, task.gen, attempt, state, reason)
  end
  if task.lane then pass_lane(pool, ending, task.lane, id) end
end

-- Write what the ended tasks of one call share: whose turn in a lane came, one event, one reply entry per waiting client, the counters.
local function flush_endings(pool, ending)
  flush_turns(pool, ending)
  if #ending.events > 0 then
    redis.call('XADD', pool .. ':events', 'MAXLEN', '~', 1000, '*', unpack(ending.events))
  end
  for client, replies in pairs(ending.replies) do
    local replies_key = pool .. ':replies:' .. client
    redis.call('XADD', replies_key, 'MAXLEN', '~', 1000, '*', unpack(replies))
    redis.call('EXPIRE', replies_key, 3600)
  end
  increment_counters(pool, ending.now, ending.counts)
end

-- Index a dead letter by time, and forget those whose tasks are gone by now.
local function index_dead(pool, id, now_ms, dead_ttl_s)
  local dead_key = pool .. ':dead'
  redis.call('ZADD', dead_key, integer(now_ms), id)
  redis.call('ZREMRANGEBYSCORE', dead_key, '-inf', integer(now_ms - dead_ttl_s * 1000))
  redis.call('EXPIRE', dead_key, dead_ttl_s)
end
