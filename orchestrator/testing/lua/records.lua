#!lua flags=no-writes
-- Reads some tasks.
-- returns: per task: state, envelope, addressed queue, due ms; each '' when missing
-- repeat: reads again
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: id

local answers = {}
for i = 1, #rows do
  local id = rows[i].id
  local task = redis.call('HMGET', pool .. ':task:' .. id, 'state', 'env', 'queue')
  local due_ms = redis.call('ZSCORE', pool .. ':scheduled', id)
  answers[#answers + 1] = {task.state or '', task.env or '', task.queue or '', due_ms or ''}
end
return answers
