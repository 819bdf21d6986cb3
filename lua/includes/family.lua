-- Lists of the tasks of a session and of the children of a task, and the list of sessions.
--@include time: integer

-- Newest tasks that the list of a session keeps.
local kept_tasks = 1000

-- Newest children that the list of a parent keeps: all of a large family, so that a cancel reaches each of them.
local kept_children = 100000

-- Sessions that are listed.
local kept_sessions = 10000

-- Listed sessions that each new one checks, so that those whose lists have expired leave the list. Chosen at random,
-- because lists have different lifetimes.
local checked_sessions = 3

-- Sessions beyond these, so that few calls remove old ones.
local session_slack = 100

-- Collects a new task for the list of its session or parent. `keep_s` is the time for which its record may be kept.
local function collect_member(lists, name, id, keep_s)
  local list = lists[name]
  if not list then
    list = {ids = {}, keep_s = 0}
    lists[name] = list
  end
  list.ids[#list.ids + 1] = id
  if keep_s > list.keep_s then list.keep_s = keep_s end
end

-- Appends collected tasks to a list, which is kept at least as long as their records may be. Drops the oldest tasks of
-- more than `most`, and counts them in a field of a hash.
local function append_members(list_key, list, most, counts_key, field)
  local length = redis.call('RPUSH', list_key, unpack(list.ids))
  if length == #list.ids then
    -- A list before this one has expired.
    redis.call('HDEL', counts_key, field)
    redis.call('EXPIRE', list_key, list.keep_s)
  else
    redis.call('EXPIRE', list_key, list.keep_s, 'GT')
  end
  if length > most then
    redis.call('LTRIM', list_key, -most, -1)
    redis.call('HINCRBY', counts_key, field, length - most)
  end
end

-- Stores the collected children of each parent.
local function flush_children(pool, parents)
  for parent, list in pairs(parents) do
    append_members(pool .. ':children:' .. parent, list, kept_children, pool .. ':task:' .. parent, 'dropped')
  end
end

-- Returns a flat list of a score and each of the sessions, for ZADD.
local function score_sessions(sessions, time)
  local scored, n = {}, 0
  for session in pairs(sessions) do
    scored[n + 1], scored[n + 2] = time, session
    n = n + 2
  end
  return scored
end

-- Removes sessions whose lists have expired, from a random choice.
local function remove_expired(pool, sessions_key, dropped_key, count)
  local chosen, list_keys = redis.call('ZRANDMEMBER', sessions_key, count), {}
  for i = 1, #chosen do list_keys[i] = pool .. ':session:' .. chosen[i] end
  if redis.call('EXISTS', unpack(list_keys)) == #chosen then return end
  for i = 1, #chosen do
    local list_key = list_keys[i]
    if redis.call('EXISTS', list_key) == 0 then
      redis.call('ZREM', sessions_key, chosen[i])
      redis.call('HDEL', dropped_key, chosen[i])
    end
  end
end

-- Stores the collected tasks of each session, and notes its activity. Removes the sessions without activity for the
-- longest time when there are too many. `time` is the present ms as text.
local function flush_sessions(pool, sessions, time)
  if not next(sessions) then return end
  local sessions_key, dropped_key = pool .. ':sessions', pool .. ':sessions:dropped'
  local new = redis.call('ZADD', sessions_key, unpack(score_sessions(sessions, time)))
  for session, list in pairs(sessions) do
    append_members(pool .. ':session:' .. session, list, kept_tasks, dropped_key, session)
  end
  if new == 0 then return end
  remove_expired(pool, sessions_key, dropped_key, math.min(new * checked_sessions, 300))
  local excess = redis.call('ZCARD', sessions_key) - kept_sessions
  if excess < session_slack then return end
  local old = redis.call('ZRANGE', sessions_key, 0, math.min(excess, 1000) - 1)
  local list_keys = {}
  for i = 1, #old do list_keys[i] = pool .. ':session:' .. old[i] end
  redis.call('UNLINK', unpack(list_keys))
  redis.call('HDEL', dropped_key, unpack(old))
  redis.call('ZREM', sessions_key, unpack(old))
end

-- Notes that tasks of listed sessions ended. `now_ms` is cut to a tenth of a second: most calls of a busy session then
-- find the score that they would write, which costs a third of a change.
local function note_activity(pool, sessions, now_ms)
  local time = integer(math.floor(now_ms / 100) * 100)
  redis.call('ZADD', pool .. ':sessions', 'XX', 'GT', unpack(score_sessions(sessions, time)))
end
