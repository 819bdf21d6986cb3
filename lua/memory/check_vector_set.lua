#!lua flags=allow-oom
-- Looks at up to `most` random elements of the vector set. With `repair` notes those that are not the vector of a record,
-- so that the client removes them, gives the set the lifetime of the vectors, and removes a set that can hold none of
-- them. It changes no record, so that it takes no caller row.
-- returns: number of elements, of stored vectors, of notes, then the elements that are not the vector of a record
-- repeat: looks at others
local scope  = KEYS[1]           -- key: root of the owner's slot
local most   = tonumber(ARGV[1]) -- int: number of elements, at most 500
local repair = ARGV[2]           -- str: 1 = repair what is found
--@include time: day_s, integer
--@include key: has_type, extend_life
--@include vectors: vector_number, split_element

local emb_key, set_key, pending_key = scope .. ':emb', scope .. ':vec', scope .. ':vec:pending'
local types = {}
if not has_type(types, emb_key, 'hash') or not has_type(types, pending_key, 'hash') or not has_type(types, set_key, 'vectorset')
  or types[set_key] == 'none' then
  return {0, 0, 0}
end
local vectors, dies = redis.call('HLEN', emb_key), redis.call('PEXPIRETIME', emb_key)
local stale = {}
for _, element in ipairs(redis.call('VRANDMEMBER', set_key, most)) do
  local number, id = split_element(element)
  if not number or vector_number(scope, id) ~= number or element ~= integer(number) .. ':' .. id then stale[#stale + 1] = element end
end
local reply = {redis.call('VCARD', set_key), vectors, redis.call('HLEN', pending_key), unpack(stale)}
if repair ~= '1' then return reply end
local any = vectors > 0 and redis.call('HRANDFIELD', emb_key, 1, 'WITHVALUES')[2]
if not any or redis.call('VDIM', set_key) ~= (#any - 8) / 4 then
  redis.call('UNLINK', set_key)
  return reply
end
if #stale > 0 then
  for i = 1, #stale do redis.call('HSET', pending_key, stale[i], 'rem') end
  extend_life(pending_key, 7 * day_s * 1000)
end
if dies > 0 then redis.call('PEXPIREAT', set_key, integer(dies)) end
return reply
