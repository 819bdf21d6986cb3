#!lua flags=allow-oom
-- Moves intermediate records to the outbox for long-term storage, those that expire first, with all their entries.
-- Passes at most 1000 records. Stops at `limit` of them that moved, or 1 MiB of content.
-- returns: ok, number of records that moved, of those that are too young, 1 if there are more to look at, else 0 |
--          duplicate, the same | fenced value | occupied value ms
-- repeat: returns duplicate and the first call's result; another, if the op id has named other records
local scope   = KEYS[1]                      -- key: root of the owner's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local age_ms  = tonumber(ARGV[2])            -- int: only records that were stored this long ago
local limit   = tonumber(ARGV[3])            -- int: at most this many
local skip    = tonumber(ARGV[4])            -- int: records that earlier calls have passed, which stay in front
local ttl_ms  = tonumber(ARGV[5])            -- int: lifetime of the outbox
local now_arg = ARGV[6]                      -- time: test override, microseconds
--@include memory: open_memory, close_memory, read_header, remove_record, remove_expired_records
--@include vectors: vector_number

local now_ms, reply = open_memory(scope, 'offload', caller, now_arg)
if not now_ms then return reply end
remove_expired_records(scope, 'im', now_ms, 20)
local out_key, ids_key = scope .. ':ltm:out', scope .. ':ltm:ids'
local ids = redis.call('ZRANGE', scope .. ':im:exp', '(' .. now_ms, '+inf', 'BYSCORE', 'LIMIT', skip, 1001)
local moved, bytes, stayed, more = 0, 0, 0, 0
for i = 1, #ids do
  if i > 1000 or moved == limit or bytes > 1048576 then
    more = 1
    break
  end
  local id = ids[i]
  --@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
  local header = read_header(scope, 'im', id)
  local content = header and redis.call('HGET', scope .. ':im:rec', id)
  if content and header.stored <= now_ms - age_ms then
    local before = redis.call('HGET', ids_key, id)
    local fields = {'i', id, 'h', cmsgpack.pack(header), 'd', content, 'a', redis.call('HGET', scope .. ':im:acc', id) or ''}
    if (header.vector or 0) > 0 and vector_number(scope, id) == header.vector then
      local vector = string.sub(redis.call('HGET', scope .. ':emb', id), 9)
      fields[9], fields[10] = 'v', vector
      fields[11], fields[12] = 's', redis.call('HGET', scope .. ':emb:meta', 'space') or ''
      bytes = bytes + #vector
    end
    local entry = redis.call('XADD', out_key, '*', unpack(fields))
    redis.call('HSET', ids_key, id, entry)
    if before then redis.call('XDEL', out_key, before) end
    remove_record(scope, 'im', id, header)
    moved, bytes = moved + 1, bytes + #content
  else
    stayed = stayed + 1
  end
end
if moved > 0 then
  redis.call('PEXPIRE', out_key, ttl_ms)
  redis.call('PEXPIRE', ids_key, ttl_ms)
end
return close_memory(scope, 'offload', caller, {moved, stayed, more})
