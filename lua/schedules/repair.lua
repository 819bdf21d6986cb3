#!lua flags=allow-oom
-- Checks that each schedule is indexed at its fire time; with `repair` corrects the index.
-- codes: lost-schedule (not indexed, or at another time) | gone-schedule (indexed without a record) |
--        damaged-schedule (a record without definition or time; repair deletes it)
-- returns: per finding: row code repaired (1 or 0)
-- repeat: finds nothing that it has repaired
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: name
local repair  = ARGV[2]                   -- str: 1 = repair what is found
local now_arg = ARGV[3]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include key: has_type
--@include counter: increment_counters
--@include schedule: set_next_fire

local now = now_us(now_arg)
local due_key = pool .. ':schedules'
local types, answers, repaired = {}, {}, 0
local shared = {[due_key] = 'zset', [pool .. ':doorbell'] = 'stream', [pool .. ':stats:TOTAL'] = 'hash',
  [pool .. ':stats:' .. integer(math.floor(now / 60000000))] = 'hash'}
local sound = true
for key, type in pairs(shared) do sound = has_type(types, key, type) and sound end
if not sound then return answers end
local may_repair = repair == '1'

local function check(name)
  local schedule_key = pool .. ':schedule:' .. name
  if not has_type(types, schedule_key, 'hash') then return nil end
  local score = redis.call('ZSCORE', due_key, name)
  if types[schedule_key] == 'none' then
    if not score then return nil end
    if may_repair then redis.call('ZREM', due_key, name) end
    return 'gone-schedule'
  end
  local schedule = redis.call('HMGET', schedule_key, 'plan', 'next', 'paused')
  if not schedule.plan or not (schedule.next == 'inf' or string.match(schedule.next or '', '^%d+$')) then
    if may_repair then
      redis.call('DEL', schedule_key)
      redis.call('ZREM', due_key, name)
    end
    return 'damaged-schedule'
  end
  local place = schedule.paused and 'inf' or schedule.next
  if score and tonumber(score) == tonumber(place) or score == place then return nil end
  if may_repair then
    if schedule.paused then redis.call('ZADD', due_key, 'inf', name) else set_next_fire(pool, name, schedule.next) end
  end
  return 'lost-schedule'
end

for i = 1, #rows do
  local code = check(rows[i].name)
  if code then
    local n = #answers
    answers[n + 1], answers[n + 2], answers[n + 3] = i, code, may_repair and 1 or 0
    if may_repair then repaired = repaired + 1 end
  end
end
if repaired > 0 then increment_counters(pool, now, {repaired = repaired}) end
return answers
