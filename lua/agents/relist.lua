#!lua flags=allow-oom
-- Lists agents in `room:S` of their skills, unless they are full and marked. Finds agents that left `room:S` while the
-- notification of their return was lost, and those that programs without `room:S` have registered.
-- returns: the agents whose parked tasks return to their queue: call `assign` for them
-- repeat: lists nothing more
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: agent
--@include registry: list_room

local unparking = {}
for i = 1, #rows do
  local agent = rows[i].agent
  local spec = redis.call('HMGET', pool .. ':agent:' .. agent, 'slots', 'skills', 'mark', 'unpark')
  local full = spec.mark and redis.call('XLEN', pool .. ':inbox:' .. agent) >= tonumber(spec.mark)
  if tonumber(spec.slots or 0) > 0 and not full then list_room(pool, agent, spec.skills or '') end
  if spec.unpark then unparking[#unparking + 1] = agent end
end
return unparking
