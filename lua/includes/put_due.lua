-- Put tasks into `scheduled`, `asking` or `expiring`: `scored` is a flat list due_ms, id, due_ms, id ... (at most 1000 long).
-- Rings when the earliest due time moved forward, because the promoter sleeps until it.
--@include notify_supervisor
local function put_due(pool, name, scored)
  local due_key = pool .. ':' .. name
  local head = redis.call('ZRANGE', due_key, 0, 0)
  redis.call('ZADD', due_key, unpack(scored))
  if redis.call('ZRANGE', due_key, 0, 0)[1] ~= head[1] then notify_supervisor(pool, 'scheduled') end
end
