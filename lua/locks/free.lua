#!lua flags=allow-oom
-- Releases the execution locks of dead attempts.
-- returns: per row released | not_held, then the task that the caller must wake ('': none)
-- repeat: returns not_held, and the task that still has to be woken
local scope   = KEYS[1]                   -- key: root of the scope's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: lock task generation
local now_arg = ARGV[2]                   -- time: test override, microseconds
--@include time: now_us
--@include lock: reserved_task, unlock

local now_ms = math.floor(now_us(now_arg) / 1000)
local answers = {}
for i = 1, #rows do
  local lock, task, generation = rows[i].lock, rows[i].task, rows[i].generation
  local lock_key = scope .. ':' .. lock
  local holder = redis.call('GET', lock_key)
  local of_task, of_generation
  if holder then of_task, of_generation = string.match(holder, '^%d+:([^:]+):(%d+):%x+$') end
  if of_task == task and of_generation == generation then
    answers[#answers + 1] = 'released'
    answers[#answers + 1] = unlock(scope, lock, holder, now_ms)
  else
    answers[#answers + 1] = 'not_held'
    answers[#answers + 1] = reserved_task(holder) or ''
  end
end
return answers
