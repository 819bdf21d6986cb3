#!lua flags=allow-oom
-- Moves tasks that a stop held back to their queues, at their old places; does nothing while the stop is active.
-- returns: moved, left (1: more tasks are held)
-- repeat: moves the remaining tasks
local pool  = KEYS[1]            -- key: root of the pool's slot
local scope = ARGV[1]            -- str: session:S or skill:S, as in the key
local slot  = ARGV[2]            -- str: the slot of its stop
local limit = tonumber(ARGV[3])  -- int: at most this many (500)
--@include envelope: skill_queue
--@include record: read_task
--@include desired: is_active
--@include queue: put_ready, enqueue

if is_active(pool, slot) then return {0, 0} end
local held_key, scopes_key = pool .. ':held:' .. scope, pool .. ':held'
local found = redis.call('ZRANGE', held_key, 0, limit - 1, 'WITHSCORES')
local ready, ids, moved = {}, {}, 0
for i = 1, #found, 2 do
  local id = found[i]
  ids[#ids + 1] = id
  local task = read_task(pool .. ':task:' .. id, 'state', 'queue', 'env')
  if task.state == 'ready' then
    enqueue(ready, task.queue or skill_queue(task.env), found[i + 1], id)
    moved = moved + 1
  end
end
for queue, scored in pairs(ready) do put_ready(pool, queue, scored) end
if #ids > 0 then redis.call('ZREM', held_key, unpack(ids)) end
local left = redis.call('EXISTS', held_key)
if left == 0 then redis.call('SREM', scopes_key, scope) end
return {moved, left}
