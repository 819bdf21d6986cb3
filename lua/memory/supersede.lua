#!lua
-- Takes a record out of all recalls because another one replaces it, or puts it back. It stays readable by its id.
-- returns: ok version | duplicate, the same | missing id | superseded id (the other record is replaced itself) |
--          fenced value | occupied value ms
-- repeat: returns duplicate and the first call's result; another, if the op id has named other records
local scope   = KEYS[1]                      -- key: root of the owner's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local id      = ARGV[2]                      -- str: record to replace
local by      = ARGV[3]                      -- str: record that replaces it; empty: put it back
local now_arg = ARGV[4]                      -- time: test override, microseconds
--@include memory: open_memory, close_memory, find_record, index_record, unindex_record, extend_keys

local now_ms, reply = open_memory(scope, 'supersede', caller, now_arg)
if not now_ms then return reply end
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local tier, header = find_record(scope, id, now_ms)
if not tier then return {'missing', id} end
if by ~= '' then
  --@row newer: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
  local found, newer = find_record(scope, by, now_ms)
  if not found then return {'missing', by} end
  if newer.superseded ~= '' then return {'superseded', newer.superseded} end
end
if header.superseded ~= by then
  header.superseded = by
  header.version = header.version + 1
  redis.call('HSET', scope .. ':' .. tier .. ':hdr', id, cmsgpack.pack(header))
  if by ~= '' then
    unindex_record(scope, tier, id, header)
  else
    index_record(scope, tier, id, header)
    extend_keys(scope, tier, id, header, now_ms)
  end
end
return close_memory(scope, 'supersede', caller, {header.version})
