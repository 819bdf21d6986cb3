#!lua
-- Appends entries to output streams of tasks from a backup. Entries that are there already stay.
-- returns: number of added entries; -1: a later run of the restore has replaced this one
-- repeat: adds nothing
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: id left_ms entries
local mark = ARGV[2]                   -- str: mark of the run
--@include time: integer
--@include restoring: goes_on, add_entries

if not goes_on(pool, mark) then return -1 end
local added = 0
for i = 1, #rows do
  local row = rows[i]
  local out_key = pool .. ':out:' .. row.id
  -- The task itself comes later, so output of one that exists is known.
  if redis.call('EXISTS', pool .. ':task:' .. row.id) == 0 then
    added = added + add_entries(out_key, row.entries)
    redis.call('PEXPIRE', out_key, integer(row.left_ms > 0 and row.left_ms or 86400000))
  end
end
return added
