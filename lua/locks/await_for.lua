#!lua flags=allow-oom
-- Records the tasks that the holder of an execution lock waits for, so that none of them waits for the same lock.
-- returns: noted, then the tasks among them that stood in the line of the lock, as `TASK:POOL`: the caller must wake them
--          | lost (the caller does not hold the lock)
-- repeat: records each task once
local scope = KEYS[1]                   -- key: root of the scope's slot
local lock  = ARGV[1]                   -- str: lock
local value = ARGV[2]                   -- str: value of the caller's lock
local pool_name = ARGV[3]               -- str: pool of the tasks
local rows  = cmsgpack.unpack(ARGV[4])  -- rows: task
--@include time: day_s
--@include lock: fenced_by

local lock_key = scope .. ':' .. lock
local awaited_key = lock_key .. ':awaited'
local line_key = lock_key .. ':line'
if fenced_by(scope, lock, value) then return {'lost'} end
local answer = {'noted'}
for i = 1, #rows do
  redis.call('SADD', awaited_key, rows[i].task)
  local member = rows[i].task .. ':' .. pool_name
  if redis.call('ZREM', line_key, member) == 1 then answer[#answer + 1] = member end
end
redis.call('PEXPIRE', awaited_key, 1000 * day_s)
return answer
