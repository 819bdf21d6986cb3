#!lua flags=allow-oom
-- Records that attempts begin. Workers call it only for tasks that have died before: a worker that dies earlier counts no
-- death for such a task (protocol rule 8).
-- status, per row: kept | lost (the attempt lost its task and must not begin; nothing changed)
-- repeat: records the same
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: id generation
--@include record: read_task

local answers = {}
for i = 1, #rows do
  local id, generation = rows[i].id, rows[i].generation
  local task_key = pool .. ':task:' .. id
  local task = read_task(task_key, 'state', 'gen')
  if task.state == 'assigned' and task.gen == generation then
    redis.call('HSET', task_key, 'begun', generation)
    answers[i] = 'kept'
  else
    answers[i] = 'lost'
  end
end
return answers
