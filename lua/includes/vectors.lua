-- Vectors of records. `emb` has each one behind its number, the microseconds at which it was stored, and the header of
-- its record names that number: so a vector that is not that of the record now is told apart in every index, also when
-- the record was deleted and stored again.
--@include time: day_s, integer
--@include key: extend_life

-- Returns the space of the stored vectors if it is another one; nil when vectors of this space may be stored.
local function other_space(scope, space)
  if space == '' then return end
  local stored = redis.call('HGET', scope .. ':emb:meta', 'space')
  if stored == space then return end
  local any = redis.call('HRANDFIELD', scope .. ':emb', 1, 'WITHVALUES')[2]
  -- Where the name of the space is lost, the number of dimensions counts.
  local dims = any and integer((#any - 8) / 4) .. ':'
  if any and (stored or string.match(space, '^%d+:') ~= dims) then return stored or dims end
end

-- Reads from each key that vectors get entries in, so that a key of another type fails the call before its first write.
local function check_vector_keys(scope)
  redis.call('HLEN', scope .. ':emb')
  redis.call('HLEN', scope .. ':emb:meta')
  redis.call('LLEN', scope .. ':emb:log')
  redis.call('HLEN', scope .. ':lshrev')
  redis.call('HLEN', scope .. ':vec:pending')
end

-- Returns the bytes of a record's vector.
local function vector_bytes(scope, id)
  return math.max(redis.call('HSTRLEN', scope .. ':emb', id) - 8, 0)
end

-- Gives a key that a change has made again the lifetime of the vectors.
local function live_as_vectors(scope, key)
  local dies = redis.call('PEXPIRETIME', scope .. ':emb')
  if dies > 0 then redis.call('PEXPIREAT', key, integer(dies), 'NX') end
end

-- Notes that the vector of a record has changed, for processes that keep vectors. The count begins with the time, so that
-- it repeats none after a loss of the key.
local function log_vector(scope, id, number)
  local meta_key, log_key = scope .. ':emb:meta', scope .. ':emb:log'
  if redis.call('HINCRBY', meta_key, 'rev', 1) == 1 then
    redis.call('HSET', meta_key, 'rev', number)
    live_as_vectors(scope, meta_key)
  end
  if redis.call('RPUSH', log_key, id) == 1 then live_as_vectors(scope, log_key) end
  redis.call('LTRIM', log_key, -1024, -1)
end

-- Notes a change of the vector set for the client. On a server without vector sets no client makes the changes: when the
-- notes outnumber the vectors, building the set anew is less work, so that the notes are removed with the set.
local function note_vector(scope, number, id, change)
  local pending_key = scope .. ':vec:pending'
  if redis.call('HLEN', pending_key) >= redis.call('HLEN', scope .. ':emb') + 1000 then
    redis.call('UNLINK', pending_key, scope .. ':vec')
  end
  redis.call('HSET', pending_key, number .. ':' .. id, change)
  extend_life(pending_key, 7 * day_s * 1000)
end

-- Calls a function with the suffix of each bucket of a record. Codes are two bytes each, one per table.
local function each_bucket(codes, fn)
  for i = 1, #codes / 2 do
    local high, low = string.byte(codes, 2 * i - 1, 2 * i)
    fn(':lsh:' .. (i - 1) .. '.' .. (high * 256 + low))
  end
end

-- Gives the keys of the vectors a life that reaches `dies` at least.
local function extend_vectors(scope, id, dies)
  local emb_key = scope .. ':emb'
  local mode = redis.call('PEXPIRETIME', emb_key) < dies and 'GT' or 'NX'
  for _, part in ipairs({':emb', ':emb:meta', ':emb:log', ':lshrev', ':vec'}) do
    redis.call('PEXPIREAT', scope .. part, integer(dies), 'NX')
    if mode == 'GT' then redis.call('PEXPIREAT', scope .. part, integer(dies), 'GT') end
  end
  each_bucket(redis.call('HGET', scope .. ':lshrev', id) or '', function(part)
    redis.call('PEXPIREAT', scope .. part, integer(dies), 'NX')
    redis.call('PEXPIREAT', scope .. part, integer(dies), 'GT')
  end)
end

-- Returns whether the memory has a vector set, or gets one.
local function has_vector_set(scope)
  return redis.call('EXISTS', scope .. ':vec', scope .. ':vec:pending') > 0
end

-- Returns the number of a record's stored vector; nil when it has none.
local function vector_number(scope, id)
  local stored = redis.call('HGET', scope .. ':emb', id)
  if stored and #stored > 8 then return (struct.unpack('<d', stored)) end
end

-- Returns number and id of an element of the vector set; nil for a foreign one.
local function split_element(element)
  local number, id = string.match(element, '^(%d+):(.*)$')
  if number then return tonumber(number), id end
end

-- Removes a record from the buckets of its vector.
local function leave_buckets(scope, id)
  local codes = redis.call('HGET', scope .. ':lshrev', id)
  if not codes then return end
  redis.call('HDEL', scope .. ':lshrev', id)
  each_bucket(codes, function(part) redis.call('SREM', scope .. part, id) end)
end

-- Removes a stored vector, and notes the change.
local function remove_vector(scope, id, number_text)
  local emb_key = scope .. ':emb'
  leave_buckets(scope, id)
  if has_vector_set(scope) then note_vector(scope, number_text, id, 'rem') end
  redis.call('HDEL', emb_key, id)
  -- Counts of a memory without vectors begin again above these.
  if redis.call('EXISTS', emb_key) == 1 then
    log_vector(scope, id, number_text)
  else
    redis.call('UNLINK', emb_key .. ':meta', emb_key .. ':log')
  end
end

-- Removes the list of the records whose vector changed, so that it names none of them. Processes that keep vectors read
-- all of them again.
local function clear_vector_log(scope, now_ms)
  local meta_key, log_key = scope .. ':emb:meta', scope .. ':emb:log'
  if redis.call('UNLINK', log_key) == 0 then return end
  local rev = tonumber(redis.call('HGET', meta_key, 'rev') or 0)
  redis.call('HSET', meta_key, 'rev', integer(math.max(rev + 1025, now_ms * 1000)))
  live_as_vectors(scope, meta_key)
end

-- Stores the vector of a record, which has none. The client changes the vector set, because that blocks the server for
-- longer than all else here; a note stays until it has.
local function put_vector(scope, id, number, vector, codes, space, indexed)
  local number_text = integer(number)
  redis.call('HSET', scope .. ':emb', id, struct.pack('<d', number) .. vector)
  redis.call('HSET', scope .. ':emb:meta', 'space', space)
  if codes ~= '' then
    redis.call('HSET', scope .. ':lshrev', id, codes)
    each_bucket(codes, function(part) redis.call('SADD', scope .. part, id) end)
  end
  if indexed == 1 or has_vector_set(scope) then
    note_vector(scope, number_text, id, 'add')
  end
  log_vector(scope, id, number_text)
end

-- Removes the vector of a record, if it has one.
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local function drop_vector(scope, id, header)
  if (header.vector or 0) == 0 then return end
  remove_vector(scope, id, integer(header.vector))
end
