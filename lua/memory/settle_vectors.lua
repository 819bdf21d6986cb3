#!lua flags=allow-oom
-- Removes notes about changes of the vector set that the client has made, and gives the set the lifetime of the vectors.
-- A vector that has left its record while the client added it gets a note, so that it leaves the set again. A set that
-- outlived the vectors, because a late client made it again, is removed; so is one for vectors with other dimensions. It
-- changes no record, so that it takes no caller row. Redis answers a VADD with CAS as if it had added the vector also when
-- it dropped it, because the set lost its last element meanwhile; the note of such a vector stays.
-- returns: number of notes that are left, then the notes of vectors that the set lacks
-- repeat: removes nothing more
local scope = KEYS[1]                   -- key: root of the owner's slot
local rows  = cmsgpack.unpack(ARGV[1])  -- rows: note change
--@include time: integer
--@include vectors: vector_number, split_element, note_vector

local pending_key, set_key, emb_key = scope .. ':vec:pending', scope .. ':vec', scope .. ':emb'
local indexed = redis.call('TYPE', set_key)['ok'] == 'vectorset'
local lacking = {}
for i = 1, #rows do
  local note = rows[i].note
  local number, id = split_element(note)
  local current = number and vector_number(scope, id) == number
  if rows[i].change == 'add' and not current and number then
    note_vector(scope, integer(number), id, 'rem')
  elseif rows[i].change == 'add' and current and not (indexed and redis.call('VGETATTR', set_key, note)) then
    lacking[#lacking + 1] = note
  elseif rows[i].change == 'rem' or redis.call('HGET', pending_key, note) ~= 'rem' then
    redis.call('HDEL', pending_key, note)
  end
end
local dies = redis.call('PEXPIRETIME', emb_key)
if dies == -2 then
  redis.call('UNLINK', set_key)
elseif indexed then
  local any = redis.call('HRANDFIELD', emb_key, 1, 'WITHVALUES')[2]
  if redis.call('VDIM', set_key) ~= (#any - 8) / 4 then
    redis.call('UNLINK', set_key)
  elseif dies > 0 then
    redis.call('PEXPIREAT', set_key, integer(dies), 'NX')
    redis.call('PEXPIREAT', set_key, integer(dies), 'GT')
  end
end
return {redis.call('HLEN', pending_key), unpack(lacking)}
