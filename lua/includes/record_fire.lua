-- Write into a schedule that a fire time has led to this task. `fire` is: schedule, the fire time that it waited for
-- (empty: a person fired it), the one that is fired (later, when others were missed), the next one, how many were missed.
--@include integer
--@include set_next_fire
local function record_fire(pool, now_ms, fire, id)
  local name, due, fired, next_ms, missed = unpack(fire)
  local schedule_key = pool .. ':schedule:' .. name
  if due == '' then fired = integer(now_ms) end
  redis.call('HSET', schedule_key, 'task', id, 'last', fired, 'at', integer(now_ms))
  redis.call('HINCRBY', schedule_key, 'fired', 1)
  if missed > 0 then redis.call('HINCRBY', schedule_key, 'missed', missed) end
  if due ~= '' then set_next_fire(pool, name, next_ms) end
end
