-- Schedules.
--@include time: integer
--@include notify: notify_supervisor

-- Let a schedule wait for its next fire time ('inf': for none any more), and tell the supervisors when it comes first now.
local function set_next_fire(pool, name, next_ms)
  local due_key = pool .. ':schedules'
  redis.call('HSET', pool .. ':schedule:' .. name, 'next', next_ms)
  redis.call('ZADD', due_key, next_ms, name)
  if redis.call('ZRANGE', due_key, 0, 0)[1] == name then notify_supervisor(pool, 'schedules') end
end

-- Whether a fire comes too late: another one has had this fire time, or the schedule was paused, changed or deleted. Of
-- `fire` (see record_fire) the first two count; without a fire time a person fires it, for which it need only exist.
--@row fire: schedule due
local function fire_is_stale(pool, fire)
  local schedule = redis.call('HMGET', pool .. ':schedule:' .. fire.schedule, 'next', 'paused')
  if not schedule.next then return true end
  return fire.due ~= '' and (schedule.next ~= fire.due or schedule.paused ~= false)
end

-- Write into a schedule that a fire time has led to this task. `fire` is: schedule, the fire time that it waited for
-- (empty: a person fired it), the one that is fired (later, when others were missed), the next one, how many were missed.
local function record_fire(pool, now_ms, fire, id)
  local name, due, fired, next_ms, missed = unpack(fire)
  local schedule_key = pool .. ':schedule:' .. name
  if due == '' then fired = integer(now_ms) end
  redis.call('HSET', schedule_key, 'task', id, 'last', fired, 'at', integer(now_ms))
  redis.call('HINCRBY', schedule_key, 'fired', 1)
  if missed > 0 then redis.call('HINCRBY', schedule_key, 'missed', missed) end
  if due ~= '' then set_next_fire(pool, name, next_ms) end
end
