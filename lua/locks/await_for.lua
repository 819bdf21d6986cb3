#!lua flags=allow-oom
-- Records the tasks that the holder of an execution lock waits for, so that none of them waits for the same lock.
-- status: noted | lost (the caller does not hold the lock)
-- repeat: records each task once
local scope = KEYS[1]                   -- key: root of the scope's slot
local lock  = ARGV[1]                   -- str: lock
local value = ARGV[2]                   -- str: value of the caller's lock
local rows  = cmsgpack.unpack(ARGV[3])  -- rows: task
--@include time: day_s
--@include lock: fenced_by

local lock_key = scope .. ':' .. lock
local awaited_key = lock_key .. ':awaited'
redis.call('EXISTS', awaited_key)
if fenced_by(scope, lock, value) then return 'lost' end
for i = 1, #rows do redis.call('SADD', awaited_key, rows[i].task) end
redis.call('PEXPIRE', awaited_key, 1000 * day_s)
return 'noted'
