-- Schedules.
--@include time: integer
--@include notify: notify_supervisor

-- Sets the next fire time of a schedule ('inf': none), and notifies supervisors when it is the earliest.
local function set_next_fire(pool, name, next_ms)
  local due_key = pool .. ':schedules'
  redis.call('HSET', pool .. ':schedule:' .. name, 'next', next_ms)
  redis.call('ZADD', due_key, next_ms, name)
  if redis.call('ZRANGE', due_key, 0, 0)[1] == name then notify_supervisor(pool, 'schedules') end
end

-- Returns whether a fire is too late: another one took this fire time, or the schedule was paused, changed or deleted.
-- A fire without a due time is an operator's; its schedule must exist.
--@row fire: schedule due
local function fire_is_stale(pool, fire)
  local schedule = redis.call('HMGET', pool .. ':schedule:' .. fire.schedule, 'next', 'paused')
  if not schedule.next then return true end
  return fire.due ~= '' and (schedule.next ~= fire.due or schedule.paused ~= false)
end

-- Stores in a schedule that a fire time led to this task. `fired` is later than `due` when fire times were missed;
-- `due` is empty when an operator fires.
local function record_fire(pool, now_ms, fire, id)
  local name, due, fired, next_ms, missed = unpack(fire)
  local schedule_key = pool .. ':schedule:' .. name
  if due == '' then fired = integer(now_ms) end
  redis.call('HSET', schedule_key, 'task', id, 'last', fired, 'at', integer(now_ms))
  redis.call('HINCRBY', schedule_key, 'fired', 1)
  if missed > 0 then redis.call('HINCRBY', schedule_key, 'missed', missed) end
  if due ~= '' then set_next_fire(pool, name, next_ms) end
end
