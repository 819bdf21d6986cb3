#!lua flags=no-writes
-- What is stored of some tasks.
-- answers: per task state, envelope, addressed queue, due ms; empty where there is none
-- repeat: reads again
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: id

local answers = {}
for i = 1, #rows do
  local id = rows[i][1]
  local found = redis.call('HMGET', pool .. ':task:' .. id, 'state', 'env', 'queue')
  answers[#answers + 1] = {found[1] or '', found[2] or '', found[3] or '', redis.call('ZSCORE', pool .. ':scheduled', id) or ''}
end
return answers
