#!lua flags=allow-oom
-- Lists agents in `room:S` of their skills, unless they are full and marked. Finds agents that left `room:S` while the
-- notification of their return was lost, and those that programs without `room:S` have registered.
-- returns: the agents to call `assign` for: their parked tasks return to their queue, or they lend slots
-- repeat: lists nothing more
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: agent
--@include registry: list_room

local to_assign = {}
for i = 1, #rows do
  local agent = rows[i].agent
  local spec = redis.call('HMGET', pool .. ':agent:' .. agent, 'slots', 'skills', 'mark', 'unpark')
  local full = spec.mark and redis.call('XLEN', pool .. ':inbox:' .. agent) >= (tonumber(spec.mark) or math.huge)
  if tonumber(spec.slots or 0) > 0 and not full then list_room(pool, agent, spec.skills or '') end
  -- Awaited tasks fit into lent slots, also of an agent without room (protocol rule 32).
  local lends = redis.call('EXISTS', pool .. ':lent:' .. agent) == 1
  if spec.unpark or lends then to_assign[#to_assign + 1] = agent end
end
return to_assign
