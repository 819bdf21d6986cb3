-- Let a schedule wait for its next fire time ('inf': for none any more), and tell the supervisors when it comes first now.
--@include notify_supervisor
local function set_next_fire(pool, name, next_ms)
  local due_key = pool .. ':schedules'
  redis.call('HSET', pool .. ':schedule:' .. name, 'next', next_ms)
  redis.call('ZADD', due_key, next_ms, name)
  if redis.call('ZRANGE', due_key, 0, 0)[1] == name then notify_supervisor(pool, 'schedules') end
end
