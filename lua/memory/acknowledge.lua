#!lua flags=allow-oom
-- Removes records from the outbox that long-term storage has saved.
-- returns: ok, number of entries that were there, then the entries of records that were deleted meanwhile and must leave
--          the storage again | duplicate, the same | fenced value | occupied value ms
-- repeat: returns duplicate and the first call's result; another, if the op id has named other records
local scope   = KEYS[1]                      -- key: root of the owner's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local rows    = cmsgpack.unpack(ARGV[2])     -- rows: id entry subject
local now_arg = ARGV[3]                      -- time: test override, microseconds
--@include erased: is_erased
--@include memory: open_memory, close_memory

local now_ms, reply = open_memory(scope, 'acknowledge', caller, now_arg)
if not now_ms then return reply end
local out_key, ids_key = scope .. ':ltm:out', scope .. ':ltm:ids'
local removed, gone = 0, {}
for i = 1, #rows do
  local row = rows[i]
  removed = removed + redis.call('XDEL', out_key, row.entry)
  local erased = row.subject ~= '' and is_erased(scope, redis.sha1hex(row.subject), now_ms)
  if erased or redis.call('ZSCORE', scope .. ':ltm:gone', row.entry) then gone[#gone + 1] = row.entry end
  -- A newer version of the record may be in the outbox by now.
  if redis.call('HGET', ids_key, row.id) == row.entry then redis.call('HDEL', ids_key, row.id) end
end
return close_memory(scope, 'acknowledge', caller, {removed, unpack(gone)})
