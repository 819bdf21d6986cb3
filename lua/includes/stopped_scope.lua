-- The stop that holds one task back where its agent and its queue are free: that of its session, or of its skill. As the
-- key of its held tasks says it, `session:S` or `skill:S`; nil: none. Ask only when there are active commands.
--@include is_active
--@include session_of
--@include encoded
local function stopped_scope(pool, sessions, skill, envelope)
  if skill and is_active(pool, 'stop:skill:' .. skill) then return 'skill:' .. skill end
  local session = sessions and session_of(envelope)
  if session and is_active(pool, 'stop:session:' .. session) then return 'session:' .. encoded(session) end
  return nil
end
