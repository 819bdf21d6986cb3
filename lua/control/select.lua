#!lua flags=allow-oom
-- Stores the selection of a job before the job is issued, so that later changes do not alter it.
-- returns: size of the selection
-- repeat: appends nothing that is already stored
local pool = KEYS[1]                   -- key: root of the pool's slot
local id   = ARGV[1]                   -- str: command
local at   = tonumber(ARGV[2])         -- int: number of tasks stored before these
local rows = cmsgpack.unpack(ARGV[3])  -- rows: task
--@include time: day_s

local selection_key = pool .. ':selection:' .. id
local there = redis.call('LLEN', selection_key)
if there == at then
  local tasks = {}
  for i = 1, #rows do tasks[i] = rows[i].task end
  there = redis.call('RPUSH', selection_key, unpack(tasks))
end
redis.call('EXPIRE', selection_key, 7 * day_s)
return there
