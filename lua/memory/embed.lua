#!lua
-- Gives up to 100 records without a vector the one that a caller has made of their content. Leaves a record whose content
-- has changed since, and one that has a vector by now. Versions stay.
-- returns: ok, number of the vectors or 0, then the ids of the records that have got one | duplicate, the same |
--          fenced value | occupied value ms | full what | space name (the stored vectors are of another space)
-- repeat: returns duplicate and the first call's result; another, if the op id has named other records
local scope   = KEYS[1]                      -- key: root of the agent's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: stm_ms im_ms stm_records im_records bytes
local rows    = cmsgpack.unpack(ARGV[3])     -- rows: id digest vector codes space indexed
local now_arg = ARGV[4]                      -- time: test override, microseconds
--@include memory: open_memory, close_memory, find_record, memory_bytes, extend_keys
--@include time: integer, now_us
--@include vectors: check_vector_keys, other_space, put_vector

local now_ms, reply = open_memory(scope, 'embed', caller, now_arg)
if not now_ms then return reply end
check_vector_keys(scope)
local other = other_space(scope, rows[1].space)
if other then return {'space', other} end
local due, more = {}, 0
for i = 1, #rows do
  --@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
  local tier, header = find_record(scope, rows[i].id, now_ms)
  if tier and (header.vector or 0) == 0 then
    local content = redis.call('HGET', scope .. ':' .. tier .. ':rec', rows[i].id)
    if content and redis.sha1hex(content) == rows[i].digest then
      due[#due + 1] = i
      more = more + #rows[i].vector
    end
  end
end
if more > 0 and memory_bytes(scope, {'stm', 'im'}) + more > limits.bytes then return {'full', 'bytes'} end

local number, embedded = #due > 0 and now_us(now_arg) or 0, {}
for _, i in ipairs(due) do
  local row = rows[i]
  --@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
  local tier, header = find_record(scope, row.id, now_ms)
  local stem_key = scope .. ':' .. tier
  header.vector = number
  header.bytes = header.bytes + #row.vector
  put_vector(scope, row.id, number, row.vector, row.codes, row.space, row.indexed)
  extend_keys(scope, tier, row.id, header, now_ms)
  redis.call('HSET', stem_key .. ':hdr', row.id, cmsgpack.pack(header))
  redis.call('HINCRBY', stem_key .. ':meta', 'bytes', #row.vector)
  embedded[#embedded + 1] = row.id
end
return close_memory(scope, 'embed', caller, {integer(number), unpack(embedded)})
