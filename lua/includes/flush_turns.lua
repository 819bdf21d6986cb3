-- Put the tasks into their queues whose turn in a lane came in this call.
--@include enqueue
--@include put_ready
local function flush_turns(pool, ending)
  if not next(ending.turns) then return end
  local ready = {}
  for id, turn in pairs(ending.turns) do enqueue(ready, turn[1], turn[2], id) end
  ending.turns = {}
  for queue, scored in pairs(ready) do put_ready(pool, queue, scored) end
end
