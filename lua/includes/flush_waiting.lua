-- Put the tasks of one call where they wait: their queues, `scheduled`, `asking`, and `expiring` beside them.
--@include put_ready
--@include put_due
local function flush_waiting(pool, waiting)
  for queue, scored in pairs(waiting.ready) do put_ready(pool, queue, scored) end
  if #waiting.scheduled > 0 then put_due(pool, 'scheduled', waiting.scheduled) end
  if #waiting.asking > 0 then put_due(pool, 'asking', waiting.asking) end
  if #waiting.expiring > 0 then put_due(pool, 'expiring', waiting.expiring) end
end
