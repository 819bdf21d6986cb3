#!lua flags=allow-oom
-- Renew the leases of the entries that a worker holds in one inbox, if they are still its own.
-- answers: pending (how many entries the consumer has; more than it holds, twice running: some were lost on the way),
--          then per row: kept | lost | cancelled (kept too, but somebody asked to stop it)
-- repeat: renews again
local pool   = KEYS[1]                   -- key: root of the pool's slot
local worker = ARGV[1]                   -- str: consumer
local agent  = ARGV[2]                   -- str: agent
local rows   = cmsgpack.unpack(ARGV[3])  -- rows: entry id generation

--@include keep_alive

local inbox_key = pool .. ':inbox:' .. agent
local mine, kept, answers = {}, {}, {0}
if redis.call('EXISTS', inbox_key) == 1 then
  local pending = redis.call('XPENDING', inbox_key, 'workers', '-', '+', 1000 + #rows, worker)
  for i = 1, #pending do mine[pending[i][1]] = true end
  answers[1] = #pending
end
for i = 1, #rows do
  local entry, id, generation = rows[i][1], rows[i][2], rows[i][3]
  local task = redis.call('HMGET', pool .. ':task:' .. id, 'state', 'gen', 'cancel', 'idem', 'out')
  if mine[entry] and task[1] == 'assigned' and task[2] == generation then
    kept[#kept + 1] = entry
    keep_alive(pool, id, task[4], task[5])
    answers[#answers + 1] = task[3] and 'cancelled' or 'kept'
  else
    answers[#answers + 1] = 'lost'
  end
end
if #kept > 0 then
  kept[#kept + 1] = 'JUSTID'
  redis.call('XCLAIM', inbox_key, 'workers', worker, 0, unpack(kept))
end
return answers
