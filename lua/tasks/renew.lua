#!lua flags=allow-oom
-- Renews the leases of entries that a worker holds in one inbox.
-- returns: pending (entries of the consumer; more than it holds, twice in a row: a broken connection lost some),
--          then per row: kept | lost | cancelled (kept, and a cancel is requested)
-- repeat: renews again
local pool   = KEYS[1]                   -- key: root of the pool's slot
local worker = ARGV[1]                   -- str: consumer
local agent  = ARGV[2]                   -- str: agent
local rows   = cmsgpack.unpack(ARGV[3])  -- rows: entry id generation

--@include record: read_task, keep_alive

local inbox_key = pool .. ':inbox:' .. agent
local mine, kept, answers = {}, {}, {0}
if redis.call('EXISTS', inbox_key) == 1 then
  --@rows pending: entry
  local pending = redis.call('XPENDING', inbox_key, 'workers', '-', '+', 1000 + #rows, worker)
  for i = 1, #pending do mine[pending[i].entry] = true end
  answers[1] = #pending
end
for i = 1, #rows do
  local entry, id, generation = rows[i].entry, rows[i].id, rows[i].generation
  local task = read_task(pool .. ':task:' .. id, 'state', 'gen', 'cancel', 'idem', 'out')
  if mine[entry] and task.state == 'assigned' and task.gen == generation then
    kept[#kept + 1] = entry
    keep_alive(pool, id, task.idem, task.out)
    answers[#answers + 1] = task.cancel and 'cancelled' or 'kept'
  else
    answers[#answers + 1] = 'lost'
  end
end
if #kept > 0 then
  kept[#kept + 1] = 'JUSTID'
  redis.call('XCLAIM', inbox_key, 'workers', worker, 0, unpack(kept))
end
return answers
