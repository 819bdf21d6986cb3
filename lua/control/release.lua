#!lua flags=allow-oom
-- Moves tasks that are held back to their queues, at their old places; does nothing while their stop is active, or while
-- they wait for another version of their skill.
-- returns: moved, left (1: more tasks are held)
-- repeat: moves the remaining tasks
local pool  = KEYS[1]            -- key: root of the pool's slot
local scope = ARGV[1]            -- str: session:S, skill:S or version:V:QUEUE, as in the key
local slot  = ARGV[2]            -- str: the slot of its stop; '' for versions
local limit = tonumber(ARGV[3])  -- int: at most this many (500)
--@include key: has_type
--@include envelope: skill_queue
--@include record: read_task
--@include desired: is_active
--@include version: parse_version_scope, unlist_scope, awaits_version
--@include queue: put_ready, enqueue
--@include share: ready_place

if is_active(pool, slot) then return {0, 0} end
local held_key = pool .. ':held:' .. scope
-- A client may have written a key of another type. The reconciler renames it.
if not has_type({}, held_key, 'zset') then return {0, 0} end
local found = redis.call('ZRANGE', held_key, 0, limit - 1, 'WITHSCORES')
local ready, ids, moved = {}, {}, 0
local refused, queue = parse_version_scope(scope)
if refused and found[1] then
  -- The tasks of a scope have one skill, because a digest belongs to one.
  local first = read_task(pool .. ':task:' .. found[1], 'skill', 'env')
  local skill = first.skill or (first.env and string.match(skill_queue(first.env), '^skill:(.*)$'))
  if skill and awaits_version(pool, skill, string.match(queue, '^agent:(.*)$'), refused) then return {0, 0} end
end
for i = 1, #found, 2 do
  local id = found[i]
  ids[#ids + 1] = id
  local task = read_task(pool .. ':task:' .. id, 'state', 'queue', 'env', 'fair', 'rank')
  if task.state == 'ready' then
    enqueue(ready, ready_place(task.queue or skill_queue(task.env), task.fair, task.rank), found[i + 1], id)
    moved = moved + 1
  end
end
for place, scored in pairs(ready) do put_ready(pool, place, scored) end
if #ids > 0 then redis.call('ZREM', held_key, unpack(ids)) end
local left = redis.call('EXISTS', held_key)
if left == 0 then unlist_scope(pool, scope) end
return {moved, left}
