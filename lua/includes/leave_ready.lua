-- Take a ready task that ends out of its queue, or from among those whose turn in a lane came in this very call.
--@include leave_queue
local function leave_ready(pool, ending, queue, id)
  if ending.turns[id] then
    ending.turns[id] = nil
  else
    leave_queue(pool, queue, id)
  end
end
