#!lua flags=allow-oom
-- Finds due schedules and reads what is needed to fire them. The record of a schedule decides; a wrong index is
-- corrected.
-- returns: now in ms, ms until the next schedule is due (-1: none), per schedule: name plan next anchor task, and the
--          state of that task ('': deleted)
-- repeat: finds the same schedules until they fire
local pool    = KEYS[1]                   -- key: root of the pool's slot
local excluded = cmsgpack.unpack(ARGV[1])  -- rows: name
local limit   = tonumber(ARGV[2])         -- int: read at most this many, and at most 1 MiB of definitions
local now_arg = ARGV[3]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include key: has_type

local now_ms = math.floor(now_us(now_arg) / 1000)
local due_key = pool .. ':schedules'
local types, is_excluded = {}, {}
for i = 1, #excluded do is_excluded[excluded[i].name] = true end

local names = redis.call('ZRANGE', due_key, '-inf', integer(now_ms), 'BYSCORE', 'LIMIT', 0, limit + #excluded)
local answers, bytes, wait_ms = {integer(now_ms), -1}, 0, -1
for i = 1, #names do
  local name = names[i]
  if not is_excluded[name] then
    local schedule_key = pool .. ':schedule:' .. name
    --@row schedule: plan next anchor task paused
    local schedule = {}
    -- A key of another type must not keep the other schedules from firing.
    if has_type(types, schedule_key, 'hash') then
      schedule = redis.call('HMGET', schedule_key, 'plan', 'next', 'anchor', 'task', 'paused')
    end
    if not schedule.plan then
      redis.call('ZREM', due_key, name)
    elseif schedule.paused or not string.match(schedule.next or '', '^%d+$') then
      redis.call('ZADD', due_key, 'inf', name)
    elseif tonumber(schedule.next) > now_ms then
      redis.call('ZADD', due_key, schedule.next, name)
    elseif bytes < 1048576 then
      local state = schedule.task and redis.call('HGET', pool .. ':task:' .. schedule.task, 'state')
      local n = #answers
      answers[n + 1], answers[n + 2], answers[n + 3] = name, schedule.plan, schedule.next
      answers[n + 4], answers[n + 5], answers[n + 6] = schedule.anchor or '0', schedule.task or '', state or ''
      bytes = bytes + #schedule.plan
    else
      wait_ms = 0
    end
  end
end
if #names == limit + #excluded then
  wait_ms = 0
elseif wait_ms < 0 then
  local later = redis.call('ZRANGE', due_key, '(' .. integer(now_ms), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  if later[2] and later[2] ~= 'inf' then wait_ms = tonumber(later[2]) - now_ms end
end
answers[2] = wait_ms
return answers
