#!lua flags=allow-oom
-- Makes a task ready that waits for an exclusive lock, at its original place, because the lock is kept for it.
-- status: woken | noted (its attempt has not stored its verdict yet; the task will not wait) | gone (it does not wait)
-- repeat: returns woken or noted
local pool = KEYS[1]  -- key: root of the pool's slot
local id   = ARGV[1]  -- str: task
--@include envelope: skill_queue
--@include record: read_task, original_score
--@include queue: put_ready
--@include share: ready_place

local task_key, scheduled_key = pool .. ':task:' .. id, pool .. ':scheduled'
local task = read_task(task_key, 'state', 'gen', 'left', 'queue', 'env', 'fair', 'rank')
if task.state == 'ready' then return 'woken' end
if task.state == 'assigned' then
  redis.call('HSET', task_key, 'woken', task.gen)
  return 'noted'
end
if task.state ~= 'scheduled' or task.left ~= 'await_lock' then return 'gone' end
-- In its lane it has kept the turn.
redis.call('HSET', task_key, 'state', 'ready')
put_ready(pool, ready_place(task.queue or skill_queue(task.env), task.fair, task.rank), {original_score(task_key), id})
redis.call('ZREM', scheduled_key, id)
return 'woken'
