#!lua
-- Changes the importance, the content or the vector of a record. It keeps its place, its tier and its deadline. New
-- content without a vector leaves the record without one: the old vector is not that of the new content.
-- returns: ok version, number of the vector or 0 | duplicate, the same | missing | older version | fenced value |
--          occupied value ms | full what | space name (the stored vectors are of another space)
-- repeat: returns duplicate and the first call's result; another, if the op id has named other records
local scope   = KEYS[1]                      -- key: root of the owner's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: stm_ms im_ms stm_records im_records bytes
local row     = cmsgpack.unpack(ARGV[3])[1]  -- row: id newer_than importance content vector codes space indexed
local now_arg = ARGV[4]                      -- time: test override, microseconds
--@include memory: open_memory, close_memory, find_record, memory_bytes, extend_keys
--@include time: integer, now_us
--@include vectors: check_vector_keys, drop_vector, other_space, put_vector, vector_bytes

local now_ms, reply = open_memory(scope, 'update', caller, now_arg)
if not now_ms then return reply end
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local tier, header = find_record(scope, row.id, now_ms)
if not tier then return {'missing'} end
if row.newer_than > 0 and header.version >= row.newer_than then return {'older', header.version} end
local stem_key = scope .. ':' .. tier
local other = other_space(scope, row.space)
if other then return {'space', other} end
local revectored = row.vector ~= '' or row.content ~= ''
local more = 0
if row.content ~= '' then
  more = #row.content - redis.call('HSTRLEN', stem_key .. ':rec', row.id)
end
if revectored then
  check_vector_keys(scope)
  more = more + #row.vector - vector_bytes(scope, row.id)
end
if more > 0 and memory_bytes(scope, {'stm', 'im'}) + more > limits.bytes then return {'full', 'bytes'} end

header.version = row.newer_than > 0 and row.newer_than or header.version + 1
header.bytes = header.bytes + more
if row.importance ~= '' then
  header.importance = tonumber(row.importance)
  if header.superseded == '' then redis.call('ZADD', stem_key .. ':imp', header.importance, row.id) end
end
local number = row.vector ~= '' and now_us(now_arg) or 0
if revectored then
  drop_vector(scope, row.id, header)
  header.vector = number
end
if number > 0 then
  put_vector(scope, row.id, number, row.vector, row.codes, row.space, row.indexed)
  extend_keys(scope, tier, row.id, header, now_ms)
end
redis.call('HSET', stem_key .. ':hdr', row.id, cmsgpack.pack(header))
if row.content ~= '' then redis.call('HSET', stem_key .. ':rec', row.id, row.content) end
if more ~= 0 then redis.call('HINCRBY', stem_key .. ':meta', 'bytes', more) end
return close_memory(scope, 'update', caller, {header.version, integer(number)})
