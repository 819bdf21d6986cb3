-- Whether an agent may be given nothing: everything or the agent is stopped, or it is paused.
--@include in_force
local function agent_blocked(pool, agent)
  return in_force(pool, 'stop:all') or in_force(pool, 'stop:agent:' .. agent) or in_force(pool, 'pause:agent:' .. agent)
end
