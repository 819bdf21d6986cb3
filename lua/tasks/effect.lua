#!lua flags=allow-oom
-- Stores a step of an effect: that its function begins, what it returned, or a decision about it. A full server accepts
-- it, because the function may have run. A begin adds less than a kilobyte.
-- status: stored | changed (the effect is not as the attempt has read it; nothing changed) | full (the task has `most`
-- effects; nothing changed) | stale (the attempt lost its task; nothing changed)
-- returns: status, then the stored value, which begins with the ms of its storage
-- repeat: returns stored and the stored value
local pool       = KEYS[1]            -- key: root of the pool's slot
local id         = ARGV[1]            -- str: task
local generation = ARGV[2]            -- str: generation of the attempt
local name       = ARGV[3]            -- str: name of the effect
local before     = ARGV[4]            -- str: stored value that the attempt has read; empty: none
local value      = ARGV[5]            -- str: new value without its ms, JSON
local most       = tonumber(ARGV[6])  -- int: effects that a task has at most
local told       = ARGV[7]            -- str: the step in words, for followers of the task; empty: not for them
local now_arg    = ARGV[8]            -- time: test override, microseconds
--@include time: now_us, integer
--@include record: read_task, attempt_number
--@include output: append_event

local task_key = pool .. ':task:' .. id
local effect = 'effect:' .. name
local task = read_task(task_key, 'state', 'gen', 'effects', 'out', 'fails', 'deaths', effect)
if task.state ~= 'assigned' or task.gen ~= generation then return {'stale'} end
local stored = task.effect or ''
if stored ~= before then
  if string.match(stored, '^%d+ (.*)$') == value then return {'stored', stored} end
  return {'changed'}
end
local count = tonumber(task.effects or 0)
if not task.effect then
  if count >= most then return {'full'} end
  count = count + 1
end
stored = integer(math.floor(now_us(now_arg) / 1000)) .. ' ' .. value
redis.call('HSET', task_key, effect, stored, 'effects', count)
if task.out and told ~= '' then
  append_event(pool, id, generation, attempt_number(task.fails, task.deaths), 'effect', told)
end
return {'stored', stored}
