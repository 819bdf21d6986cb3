#!lua flags=allow-oom
-- Keep the result of what a handler did and must not do again, with its task. It was done: a full server takes it too.
-- status, of the result: stored | already value (it had been stored) | stale (the task was taken away; nothing changed)
-- answers: status, then the value that had been stored
-- repeat: answers already, with the value that was stored
local pool       = KEYS[1]  -- key: root of the pool's slot
local id         = ARGV[1]  -- str: task
local generation = ARGV[2]  -- str: of the attempt
local name       = ARGV[3]  -- str: what was done
local value      = ARGV[4]  -- str: its result, JSON
--@include record: read_task

local task_key = pool .. ':task:' .. id
local once = 'once:' .. name
local task = read_task(task_key, 'state', 'gen', once)
if task.state ~= 'assigned' or task.gen ~= generation then return {'stale'} end
if task.once then return {'already', task.once} end
redis.call('HSET', task_key, once, value)
return {'stored'}
