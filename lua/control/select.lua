#!lua flags=allow-oom
-- Keep the tasks that a job is for, before it is given: what is selected does not change any more.
-- answers: how many there are
-- repeat: what lies there already is not added again
local pool = KEYS[1]                   -- key: root of the pool's slot
local id   = ARGV[1]                   -- str: command
local at   = tonumber(ARGV[2])         -- int: how many there are before these
local rows = cmsgpack.unpack(ARGV[3])  -- rows: task

local selection_key = pool .. ':selection:' .. id
local there = redis.call('LLEN', selection_key)
if there == at then
  local tasks = {}
  for i = 1, #rows do tasks[i] = rows[i].task end
  there = redis.call('RPUSH', selection_key, unpack(tasks))
end
redis.call('EXPIRE', selection_key, 604800)
return there
