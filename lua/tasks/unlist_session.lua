#!lua flags=allow-oom
-- Removes tasks that no longer exist from the list of a session, and the session with its last task from the list of
-- sessions.
-- returns: number of tasks that the list still has
-- repeat: changes nothing more
local pool    = KEYS[1]                   -- key: root of the pool's slot
local session = ARGV[1]                   -- str: encoded id of the session
local rows    = cmsgpack.unpack(ARGV[2])  -- rows: id
--@include record: read_task

local list_key = pool .. ':session:' .. session
for i = 1, #rows do
  local id = rows[i].id
  local task = read_task(pool .. ':task:' .. id, 'state', 'deleted')
  if task.deleted or not task.state then redis.call('LREM', list_key, 1, id) end
end
local left = redis.call('LLEN', list_key)
if left == 0 then
  redis.call('ZREM', pool .. ':sessions', session)
  redis.call('HDEL', pool .. ':sessions:dropped', session)
end
return left
