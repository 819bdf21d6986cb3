#!lua flags=allow-oom
-- Checks up to 100 members of a key of one tier of memory against the headers of their records, which decide; with
-- `repair` gives records the entries that they lack, and removes what belongs to no record.
-- codes: unlisted-record (an index lacks a record) | orphan-entry (an index has an entry without a record)
--        | lost-record (a record has lost its content) | lost-header (a record has lost its header)
--        | lost-vector (a record has lost its vector) | lost-counts (a tier has records and no counts)
--        | unlisted-state (the index of a simulation lacks a record)
-- returns: per finding: row code place repaired (1 or 0)
-- repeat: finds nothing that it has repaired
local scope   = KEYS[1]                   -- key: root of the owner's slot
local tier    = ARGV[1]                   -- str: stm or im
local part    = ARGV[2]                   -- str: key of the tier, as `time` or `kind:K`
local rows    = cmsgpack.unpack(ARGV[3])  -- rows: id unlisted
local repair  = ARGV[4]                   -- str: 1 = repair what is found
local now_arg = ARGV[5]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include key: has_type
--@include memory: read_header, remove_record, index_record, extend_keys, note_listing, clear_vector

local now_ms = math.floor(now_us(now_arg) / 1000)
local stem_key = scope .. ':' .. tier
local part_key, rec_key, hdr_key, meta_key = stem_key .. ':' .. part, stem_key .. ':rec', stem_key .. ':hdr', stem_key .. ':meta'
local types, answers = {}, {}
local sound = has_type(types, rec_key, 'hash') and has_type(types, hdr_key, 'hash') and has_type(types, meta_key, 'hash')
for _, index in ipairs({'time', 'imp', 'exp'}) do sound = has_type(types, stem_key .. ':' .. index, 'zset') and sound end
if not sound then return answers end
local may_repair = repair == '1'

local function note(row, code, repaired)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4] = row, code, tier .. ':' .. part, repaired and 1 or 0
end

-- Returns about the bytes of all records of the tier: exact for up to 100, else from a sample of them.
local function count_bytes()
  local records = redis.call('HLEN', hdr_key)
  local sample, bytes = redis.call('HRANDFIELD', hdr_key, 100, 'WITHVALUES'), 0
  for i = 2, #sample, 2 do
    bytes = bytes + (select(12, unpack(cmsgpack.unpack(sample[i]))))
  end
  return math.floor(bytes * records / math.min(records, 100))
end

if part == 'hdr' and redis.call('EXISTS', meta_key) == 0 and redis.call('EXISTS', hdr_key) == 1 then
  if may_repair then
    redis.call('HSET', meta_key, 'bytes', count_bytes())
    local dies = redis.call('PEXPIRETIME', hdr_key)
    if dies > 0 then redis.call('PEXPIREAT', meta_key, integer(dies)) end
  end
  note(0, 'lost-counts', may_repair)
end

-- Returns the indices of the tier that list a record, by their suffixes behind the tier.
local function index_parts(header)
  local _, _, _, _, _, kind, action, cell, subject, _, superseded = unpack(header)
  local parts = {'exp'}
  if subject ~= '' then parts[#parts + 1] = 'subj:' .. subject end
  if superseded == '' then
    for _, name in ipairs({'time', 'imp', 'kind:' .. kind}) do parts[#parts + 1] = name end
    if action ~= '' then parts[#parts + 1] = 'act:' .. action end
    if cell ~= '' then parts[#parts + 1] = 'cell:' .. cell end
  end
  return parts
end

-- Gives a record all its entries.
local function put_entries(id, header)
  local _, score, _, deadline, _, _, _, _, subject, _, superseded = unpack(header)
  redis.call('ZADD', stem_key .. ':exp', deadline, id)
  if subject ~= '' then redis.call('ZADD', stem_key .. ':subj:' .. subject, score, id) end
  if superseded == '' then index_record(scope, tier, id, header) end
  extend_keys(scope, tier, id, header, now_ms)
end

-- Returns whether a record lacks an entry, or has another score in an index of steps.
local function lacks_entries(id, header)
  local parts, step_score = index_parts(header), (select(2, unpack(header)))
  for i = 1, #parts do
    local index_key = stem_key .. ':' .. parts[i]
    -- An index of another type has its own finding.
    if has_type(types, index_key, 'zset') then
      local score = redis.call('ZSCORE', index_key, id)
      if not score or (parts[i] == 'time' and tonumber(score) ~= step_score) then return true end
    end
  end
  return false
end

-- Returns whether a record has a vector that is not stored.
local function lacks_vector(id, header)
  local vector, emb_key = select(18, unpack(header)), scope .. ':emb'
  return (vector or 0) > 0 and has_type(types, emb_key, 'hash') and redis.call('HEXISTS', emb_key, id) == 0
end

-- Returns whether an index lists a record by its header.
local function belongs(header)
  local parts = index_parts(header)
  for i = 1, #parts do
    if parts[i] == part then return true end
  end
  return false
end

for i = 1, #rows do
  local id = rows[i].id
  local header = read_header(scope, tier, id)
  if part == 'rec' then
    local content = not header and redis.call('HGET', rec_key, id)
    if content then
      if may_repair then
        redis.call('HDEL', rec_key, id)
        redis.call('HINCRBY', meta_key, 'bytes', -#id - #content)
      end
      note(i, 'lost-header', may_repair)
    end
  elseif part == 'hdr' then
    -- A sweep removes records that have expired.
    if header and (select(4, unpack(header))) > now_ms then
      if redis.call('HEXISTS', rec_key, id) == 0 then
        if may_repair then remove_record(scope, tier, id, header) end
        note(i, 'lost-record', may_repair)
      elseif lacks_entries(id, header) then
        if may_repair then
          put_entries(id, header)
        end
        note(i, 'unlisted-record', may_repair)
      end
      if lacks_vector(id, header) and redis.call('HEXISTS', rec_key, id) == 1 then
        if may_repair then clear_vector(scope, tier, id, header) end
        note(i, 'lost-vector', may_repair)
      end
      -- A change that is still to be made is no damage. The caller makes the one that is noted here.
      local pending = (select(10, unpack(header))) .. ' ' .. id
      if rows[i].unlisted == 1 and redis.call('HEXISTS', scope .. ':sim:pending', pending) == 0 then
        if may_repair and (select(11, unpack(header))) == '' then note_listing(scope, id, header, 1) end
        note(i, 'unlisted-state', may_repair)
      end
    end
  elseif (not header or not belongs(header)) and redis.call('ZSCORE', part_key, id) then
    if may_repair then redis.call('ZREM', part_key, id) end
    note(i, 'orphan-entry', may_repair)
  end
end
-- Without its counts, a removal has just created them.
if may_repair and redis.call('PTTL', meta_key) == -1 then
  local dies = math.max(redis.call('PEXPIRETIME', hdr_key), redis.call('PEXPIRETIME', rec_key))
  if dies > 0 then redis.call('PEXPIREAT', meta_key, integer(dies)) else redis.call('UNLINK', meta_key) end
end
return answers
