-- Whether an agent may be given nothing: everything or the agent is stopped, or it is paused.
--@include is_active
local function agent_blocked(pool, agent)
  return is_active(pool, 'stop:all') or is_active(pool, 'stop:agent:' .. agent) or is_active(pool, 'pause:agent:' .. agent)
end
