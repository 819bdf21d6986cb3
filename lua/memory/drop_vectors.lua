#!lua flags=allow-oom
-- Removes the vectors of up to 100 records, which stay as they are. An entry of a record that is gone is removed as well.
-- returns: ok, number of removed vectors | duplicate, the same | fenced value | occupied value ms
-- repeat: returns duplicate and the first call's result; another, if the op id has named other records
local scope   = KEYS[1]                      -- key: root of the agent's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local rows    = cmsgpack.unpack(ARGV[2])     -- rows: id
local now_arg = ARGV[3]                      -- time: test override, microseconds
--@include memory: open_memory, close_memory, find_record
--@include vectors: check_vector_keys, drop_vector, vector_bytes

local now_ms, reply = open_memory(scope, 'drop_vectors', caller, now_arg)
if not now_ms then return reply end
check_vector_keys(scope)
local dropped = 0
for i = 1, #rows do
  local id = rows[i].id
  local stored = redis.call('HGET', scope .. ':emb', id)
  if stored then
    dropped = dropped + 1
    --@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
    local tier, header = find_record(scope, id, now_ms)
    if tier and (header.vector or 0) > 0 then
      local stem_key, bytes = scope .. ':' .. tier, vector_bytes(scope, id)
      drop_vector(scope, id, header)
      header.vector = 0
      header.bytes = header.bytes - bytes
      redis.call('HSET', stem_key .. ':hdr', id, cmsgpack.pack(header))
      redis.call('HINCRBY', stem_key .. ':meta', 'bytes', -bytes)
    else
      --@row gone: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
      local gone = {}
      gone.vector = struct.unpack('<d', stored)
      drop_vector(scope, id, gone)
    end
  end
end
return close_memory(scope, 'drop_vectors', caller, {dropped})
