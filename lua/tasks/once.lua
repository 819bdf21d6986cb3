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

local task_key = pool .. ':task:' .. id
local found = redis.call('HMGET', task_key, 'state', 'gen', 'once:' .. name)
if found[1] ~= 'assigned' or found[2] ~= generation then return {'stale'} end
if found[3] then return {'already', found[3]} end
redis.call('HSET', task_key, 'once:' .. name, value)
return {'stored'}
