-- The desired state: active commands.
--@include time: integer
--@include key: has_type, percent_encode
--@include envelope: session_of, family_of
--@include version: version_scope

-- Returns whether a slot of the desired state holds an active command: its first letter is 1.
local function is_active(pool, slot)
  local value = redis.call('HGET', pool .. ':desired', slot)
  return value and string.byte(value) == 49
end

-- Returns when the pause in a slot ends, in ms; 0: none is active. The command tells its end first, before actor and reason.
local function held_until(pool, slot, now_ms)
  local value = redis.call('HGET', pool .. ':desired', slot)
  if not value or string.byte(value) ~= 49 then return 0 end
  local until_ms = tonumber(string.match(value, '"until_ms":(%d+)') or 0)
  return until_ms > now_ms and until_ms or 0
end

-- Returns whether an agent may get no task: everything or the agent is stopped, or the agent is paused.
local function agent_blocked(pool, agent)
  return is_active(pool, 'stop:all') or is_active(pool, 'stop:agent:' .. agent) or is_active(pool, 'pause:agent:' .. agent)
end

-- Returns whether a slot is the stop of a session or a family, which the envelope of a task names. `desired` counts them
-- in its field `sessions`.
local function is_of_envelope(slot)
  return string.sub(slot, 1, 13) == 'stop:session:' or string.sub(slot, 1, 12) == 'stop:family:'
end

-- Returns whether any session or family is stopped; without one, envelopes need not be read for theirs.
local function any_session_stopped(pool)
  return tonumber(redis.call('HGET', pool .. ':desired', 'sessions') or 0) > 0
end

-- Returns the stop that holds one task back, that of its skill, session or family, as `skill:S`, `session:S` or
-- `family:ROOT`; nil: none. Needed only when commands are active; without `sessions`, no session and no family is stopped.
local function stopped_scope(pool, sessions, skill, id, envelope)
  if skill and is_active(pool, 'stop:skill:' .. skill) then return 'skill:' .. skill end
  if not sessions then return nil end
  local session, family = session_of(envelope), family_of(id, envelope)
  if session and is_active(pool, 'stop:session:' .. session) then return 'session:' .. percent_encode(session) end
  if family and is_active(pool, 'stop:family:' .. family) then return 'family:' .. family end
  return nil
end

-- Returns the scopes that may hold a task back: the stops of its skill, its session and its family, the versions of its
-- skill that refused it, and the budget that `need` names.
local function suspended_scopes(queue, skill, id, envelope, refused, need)
  local scopes = {}
  local named = skill or string.match(queue, '^skill:(.*)$')
  if named then scopes[1] = 'skill:' .. named end
  local session = envelope and session_of(envelope)
  if session then scopes[#scopes + 1] = 'session:' .. percent_encode(session) end
  local family = envelope and family_of(id, envelope)
  if family then scopes[#scopes + 1] = 'family:' .. family end
  if refused then scopes[#scopes + 1] = version_scope(refused, queue) end
  if need then scopes[#scopes + 1] = 'budget:' .. string.match(need, '^%S*') end
  return scopes
end

-- Returns a number of the desired state. A value that is no number of at most 15 digits counts as 0, so that a corrupt
-- value neither blocks commands nor freezes the number.
local function desired_number(key, field)
  local found = tonumber(string.match(redis.call('HGET', key, field) or '', '^%d+$') or 0)
  return found < 1e15 and found or 0
end

-- Adds to a number of the desired state.
local function count_desired(pool, field, by)
  local desired_key = pool .. ':desired'
  redis.call('HSET', desired_key, field, integer(math.max(0, desired_number(desired_key, field) + by)))
end

-- Drops revisions that belong to a desired state that is lost.
local function check_revisions(pool)
  local revisions_key = pool .. ':desired:revisions'
  if not has_type({}, revisions_key, 'hash')
    or desired_number(revisions_key, 'seq') > desired_number(pool .. ':desired', 'seq') then
    redis.call('UNLINK', revisions_key)
  end
end

-- Raises the number of the desired state, at least to a time in ms, and returns it; a command notes it as the revision of
-- its slots. Times keep the number unique, even after Redis lost its last writes.
local function raise_seq(pool, at_least)
  check_revisions(pool)
  local desired_key = pool .. ':desired'
  local seq = math.max(desired_number(desired_key, 'seq') + 1, at_least)
  redis.call('HSET', desired_key, 'seq', integer(seq))
  redis.call('HSET', pool .. ':desired:revisions', 'seq', integer(seq))
  return integer(seq)
end
