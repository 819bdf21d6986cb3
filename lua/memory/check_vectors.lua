#!lua flags=allow-oom
-- Checks up to 100 members of a key of vectors: each vector with the header of its record and its entries in indices, or
-- entries of buckets with their vector. With `repair` removes what belongs to no record, and gives vectors the entries
-- that they lack; the client makes the changes of the vector set that it notes. It takes no caller row, because the
-- header of the record decides.
-- codes: orphan-vector (no record has this vector) | unlisted-record (an index of vectors lacks one) | orphan-entry (a
--        bucket has an entry without a vector) | lost-counts (the vectors have no counts)
-- returns: per finding: row (0: the memory) code
-- repeat: finds nothing that it has repaired
local scope   = KEYS[1]                   -- key: root of the owner's slot
local part    = ARGV[1]                   -- str: emb, lshrev or lsh:B
local rows    = cmsgpack.unpack(ARGV[2])  -- rows: id codes
local indexed = ARGV[3]                   -- str: 1 = the vector set has to have each vector
local repair  = ARGV[4]                   -- str: 1 = repair what is found
local now_arg = ARGV[5]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include key: has_type
--@include memory: read_header, clear_vector
--@include vectors: vector_number, remove_vector, leave_buckets, each_bucket, note_vector, live_as_vectors, clear_vector_log

local may_repair = repair == '1'
local emb_key, rev_key, set_key, pending_key = scope .. ':emb', scope .. ':lshrev', scope .. ':vec', scope .. ':vec:pending'
local meta_key = scope .. ':emb:meta'
local types, answers, orphans = {}, {}, 0
for _, key in ipairs({emb_key, rev_key, pending_key, meta_key, scope .. ':stm:hdr', scope .. ':im:hdr'}) do
  if not has_type(types, key, 'hash') then return answers end
end
local has_set = has_type(types, set_key, 'vectorset') and types[set_key] ~= 'none'
-- A set of another type has its own finding.
local needs_set = indexed == '1' and (has_set or types[set_key] == 'none')

local function note(row, code)
  answers[#answers + 1], answers[#answers + 2] = row, code
  if code == 'orphan-vector' then orphans = orphans + 1 end
end

-- Returns whether the vector set lacks a vector, and no note says that it follows.
local function lacks_element(element)
  if not (has_set or needs_set) or redis.call('HEXISTS', pending_key, element) == 1 then return false end
  return not has_set or not redis.call('VGETATTR', set_key, element)
end

-- Returns whether a record lacks buckets of its vector, and puts it into them.
local function restore_buckets(id, codes)
  local lacks = redis.call('HGET', rev_key, id) ~= codes
  each_bucket(codes, function(bucket)
    if has_type(types, scope .. bucket, 'set') and redis.call('SISMEMBER', scope .. bucket, id) == 0 then lacks = true end
  end)
  if lacks and may_repair then
    leave_buckets(scope, id)
    redis.call('HSET', rev_key, id, codes)
    live_as_vectors(scope, rev_key)
    each_bucket(codes, function(bucket)
      if has_type(types, scope .. bucket, 'set') then
        redis.call('SADD', scope .. bucket, id)
        live_as_vectors(scope, scope .. bucket)
      end
    end)
  end
  return lacks
end

-- Checks a vector with its record.
local function check_vector(row, id, codes, number)
  for _, tier in ipairs({'stm', 'im'}) do
    --@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
    local header = read_header(scope, tier, id)
    if header and header.vector == number then
      local unlisted = codes ~= '' and restore_buckets(id, codes)
      if lacks_element(integer(number) .. ':' .. id) then
        if may_repair then note_vector(scope, integer(number), id, 'add') end
        unlisted = true
      end
      if unlisted then note(row, 'unlisted-record') end
      return
    elseif header and (header.vector or 0) > 0 and may_repair then
      clear_vector(scope, tier, id, header)
    end
  end
  if may_repair then remove_vector(scope, id, integer(number)) end
  note(row, 'orphan-vector')
end

if part == 'emb' and redis.call('EXISTS', emb_key) == 1 and redis.call('HEXISTS', meta_key, 'rev') == 0 then
  if may_repair then
    redis.call('HSET', meta_key, 'rev', integer(now_us(now_arg)))
    live_as_vectors(scope, meta_key)
  end
  note(0, 'lost-counts')
end
for i = 1, #rows do
  local id = rows[i].id
  if part == 'emb' then
    local stored = redis.call('HSTRLEN', emb_key, id)
    local number = vector_number(scope, id)
    if number then
      check_vector(i, id, rows[i].codes, number)
    elseif stored > 0 then
      if may_repair then remove_vector(scope, id, '0') end
      note(i, 'orphan-vector')
    end
  elseif part == 'lshrev' then
    if redis.call('HEXISTS', rev_key, id) == 1 and redis.call('HEXISTS', emb_key, id) == 0 then
      if may_repair then leave_buckets(scope, id) end
      note(i, 'orphan-entry')
    end
  else
    local listed = false
    each_bucket(redis.call('HGET', rev_key, id) or '', function(bucket) listed = listed or bucket == ':' .. part end)
    local key = scope .. ':' .. part
    if not listed and has_type(types, key, 'set') and redis.call('SISMEMBER', key, id) == 1 then
      if may_repair then redis.call('SREM', key, id) end
      note(i, 'orphan-entry')
    end
  end
end
-- The record may be one that was erased: no list names it.
if may_repair and orphans > 0 then clear_vector_log(scope, math.floor(now_us(now_arg) / 1000)) end
return answers
