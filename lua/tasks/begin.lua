#!lua flags=allow-oom
-- Note that attempts are about to begin. Asked for tasks only that have a death behind them: such a task waits in its
-- worker until it may run alone, and when that worker dies meanwhile it has not died of itself (protocol rule 8).
-- status, per row: kept | lost (the task was taken away; nothing changed, and it must not begin)
-- repeat: notes the same
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
