-- The stops that may hold a task back, as the keys of held tasks say them: that of its skill, and that of its session.
--@include session_of
--@include encoded
local function suspended_scopes(queue, skill, envelope)
  local scopes = {}
  local named = skill or string.match(queue, '^skill:(.*)$')
  if named then scopes[1] = 'skill:' .. named end
  local session = envelope and session_of(envelope)
  if session then scopes[#scopes + 1] = 'session:' .. encoded(session) end
  return scopes
end
