#!lua flags=allow-oom
-- Stores the result of a step that a handler must not repeat. A full server accepts it, because the step has happened.
-- status, of the result: stored | already value (a result was stored) | stale (the attempt lost its task; nothing
-- changed)
-- returns: status, then the stored value
-- repeat: returns already and the stored value
local pool       = KEYS[1]  -- key: root of the pool's slot
local id         = ARGV[1]  -- str: task
local generation = ARGV[2]  -- str: generation of the attempt
local name       = ARGV[3]  -- str: name of the step
local value      = ARGV[4]  -- str: its result, JSON
--@include record: read_task

local task_key = pool .. ':task:' .. id
local once = 'once:' .. name
local task = read_task(task_key, 'state', 'gen', once)
if task.state ~= 'assigned' or task.gen ~= generation then return {'stale'} end
if task.once then return {'already', task.once} end
redis.call('HSET', task_key, once, value)
return {'stored'}
