#!lua flags=allow-oom
-- Moves schedules on to their next fire times without a new task, and stores the reason. A row whose next fire time
-- equals its due time is tried again.
-- outcomes: skipped (the previous task has not ended) | missed (no supervisor ran) | refused
-- status, per row: ok | stale (the schedule waits for another fire time)
-- repeat: returns stale, unless the fire time stayed the same
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: name due next missed outcome error
local now_arg = ARGV[2]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include schedule: set_next_fire, fire_is_stale

local now_ms = math.floor(now_us(now_arg) / 1000)
local answers = {}
for i = 1, #rows do
  local name, due, next_ms, missed, outcome, problem = unpack(rows[i])
  local schedule_key = pool .. ':schedule:' .. name
  answers[i] = 'stale'
  if not fire_is_stale(pool, {name, due}) then
    answers[i] = 'ok'
    if problem ~= '' then redis.call('HSET', schedule_key, 'error', problem, 'error_at', integer(now_ms)) end
    if next_ms ~= due then
      if outcome ~= 'missed' then redis.call('HINCRBY', schedule_key, outcome, 1) end
      if missed > 0 then redis.call('HINCRBY', schedule_key, 'missed', missed) end
      set_next_fire(pool, name, next_ms)
    end
  end
end
return answers
