#!lua flags=allow-oom
-- Removes up to 500 records with all their entries, and from the outbox for long-term storage.
-- returns: ok, number of records that existed | duplicate, the same | fenced value | occupied value ms
-- repeat: returns duplicate and the first call's result; another, if the op id has named other records
local scope   = KEYS[1]                      -- key: root of the owner's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local rows    = cmsgpack.unpack(ARGV[2])     -- rows: id
local now_arg = ARGV[3]                      -- time: test override, microseconds
--@include memory: open_memory, close_memory, read_header, remove_record, find_waiting, remove_waiting

local now_ms, reply = open_memory(scope, 'remove', caller, now_arg)
if not now_ms then return reply end
local removed = 0
for i = 1, #rows do
  local entry = find_waiting(scope, rows[i].id)
  local existed = entry and remove_waiting(scope, rows[i].id, entry, now_ms) or 0
  for _, tier in ipairs({'stm', 'im'}) do
    --@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
    local header = read_header(scope, tier, rows[i].id)
    if header then
      remove_record(scope, tier, rows[i].id, header)
      if header.deadline > now_ms then existed = 1 end
    end
  end
  removed = removed + existed
end
return close_memory(scope, 'remove', caller, {removed})
