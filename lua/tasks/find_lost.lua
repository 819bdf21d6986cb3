#!lua flags=allow-oom
-- Finds tasks without a record, among those that a client knows to be accepted. A record of large arguments alone is of a
-- task whose submit was lost behind them. It writes nothing, but says so to no server: a replica must refuse it, because
-- it may lack what its master has.
-- returns: the numbers of the rows without a record, in order
-- repeat: reads again
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: id
--@include record: read_task

local lost = {}
for i = 1, #rows do
  local known = read_task(pool .. ':task:' .. rows[i].id, 'state', 'deleted')
  if not known.state and not known.deleted then lost[#lost + 1] = i end
end
return lost
