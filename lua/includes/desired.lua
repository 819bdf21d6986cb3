-- The desired state: active commands.
--@include time: integer
--@include key: percent_encode
--@include envelope: session_of

-- Whether a slot of the desired state is filled with something that is active: its first letter is 1.
local function is_active(pool, slot)
  local value = redis.call('HGET', pool .. ':desired', slot)
  return value and string.byte(value) == 49
end

-- Whether an agent may be given nothing: everything or the agent is stopped, or it is paused.
local function agent_blocked(pool, agent)
  return is_active(pool, 'stop:all') or is_active(pool, 'stop:agent:' .. agent) or is_active(pool, 'pause:agent:' .. agent)
end

-- Whether some session is stopped: only then is it worth looking which session a task is of.
local function any_session_stopped(pool)
  return tonumber(redis.call('HGET', pool .. ':desired', 'sessions') or 0) > 0
end

-- The stop that holds one task back where its agent and its queue are free: that of its session, or of its skill. As the
-- key of its held tasks says it, `session:S` or `skill:S`; nil: none. Ask only when there are active commands.
local function stopped_scope(pool, sessions, skill, envelope)
  if skill and is_active(pool, 'stop:skill:' .. skill) then return 'skill:' .. skill end
  local session = sessions and session_of(envelope)
  if session and is_active(pool, 'stop:session:' .. session) then return 'session:' .. percent_encode(session) end
  return nil
end

-- The stops that may hold a task back, as the keys of held tasks say them: that of its skill, and that of its session.
local function suspended_scopes(queue, skill, envelope)
  local scopes = {}
  local named = skill or string.match(queue, '^skill:(.*)$')
  if named then scopes[1] = 'skill:' .. named end
  local session = envelope and session_of(envelope)
  if session then scopes[#scopes + 1] = 'session:' .. percent_encode(session) end
  return scopes
end

-- Add to a number of the desired state. What is no number that was counted here, of 15 digits at most, counts as 0: nobody
-- who can write there can keep a command out, or let the number stand still.
local function count_desired(pool, field, by)
  local desired_key = pool .. ':desired'
  local was = tonumber(string.match(redis.call('HGET', desired_key, field) or '', '^%d+$') or 0)
  if was >= 1e15 then was = 0 end
  redis.call('HSET', desired_key, field, integer(math.max(0, was + by)))
end
