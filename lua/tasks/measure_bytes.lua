#!lua flags=no-writes
-- Reads what up to 500 tasks count in the bytes of their queues. A task that does not wait counts nothing.
-- returns: queue, bytes, queue, bytes ...
-- repeat: reads again
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: id
--@include key: has_type
--@include record: read_task, is_waiting
--@include held_bytes: collect_bytes

local bytes, answers, types = {}, {}, {}
for i = 1, #rows do
  local id = rows[i].id
  local task_key = pool .. ':task:' .. id
  if has_type(types, task_key, 'hash') then
    local task = read_task(task_key, 'state', 'queue', 'env')
    if is_waiting(task.state) and task.env then collect_bytes(pool, bytes, id, task.queue, task.env, 1) end
  end
end
for queue, size in pairs(bytes) do
  if size > 0 then answers[#answers + 1], answers[#answers + 2] = queue, size end
end
return answers
