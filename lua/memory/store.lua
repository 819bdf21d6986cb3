#!lua
-- Stores up to 100 records in a tier, in order. A record with a known id replaces it, in whichever tier it is. The
-- oldest short-term records beyond the cap move to the intermediate tier; superseded ones do not count.
-- returns: ok, per row: ok | duplicate (the same version is stored) | older (a newer one is), its version, and its id if
--          the caller made it, else ''; then the number of the vectors, or 0 | duplicate, the same | fenced value |
--          occupied value ms | full what (records, bytes) | erased (a person that a record is about was erased a moment
--          ago) | space name (the stored vectors are of another space)
-- repeat: returns duplicate and the first call's result; another, if the op id has named other records
local scope   = KEYS[1]                      -- key: root of the owner's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: stm_ms im_ms stm_records im_records bytes
local tier    = ARGV[3]                      -- str: stm or im
local rows    = cmsgpack.unpack(ARGV[4])     -- rows: id made step kind action cell subject simulation type importance ttl_ms version x y meta content vector codes space indexed
local now_arg = ARGV[5]                      -- time: test override, microseconds
--@include erased: is_erased
--@include memory: open_memory, close_memory, read_header, used_tiers, memory_bytes, next_score, put_record
--@include memory: check_indices, move_oldest, remove_record, remove_expired_records
--@include time: integer, now_us
--@include vectors: other_space, put_vector

local now_ms, reply = open_memory(scope, 'store', caller, now_arg)
if not now_ms then return reply end
for i = 1, #rows do
  local row = rows[i]
  if row.subject ~= '' and is_erased(scope, redis.sha1hex(row.subject), now_ms) then return {'erased'} end
end
check_indices(scope, tier, rows)
local space = ''
for i = 1, #rows do
  if rows[i].vector ~= '' then space = rows[i].space end
end
local other = other_space(scope, space)
if other then return {'space', other} end
local tiers = used_tiers(scope, tier)
for _, name in ipairs(tiers) do remove_expired_records(scope, name, now_ms, 20) end

-- Decide on all rows before the first write of a record. `known` has, by id, what is stored after the rows so far.
-- `more` of them are new in the tier, `shown` new in its recalls; `freed` leave the other tier.
local known, values, written, more, shown, freed, bytes = {}, {}, {}, 0, 0, 0, 0
for i = 1, #rows do
  local row = rows[i]
  local old = known[row.id]
  if not old then
    old = {version = 0, bytes = 0}
    for _, name in ipairs(tiers) do
      --@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
      local header = read_header(scope, name, row.id)
      if header then
        old.tier, old.header, old.bytes, old.superseded = name, header, header.bytes, header.superseded
        if header.deadline > now_ms then old.version = header.version end
      end
    end
    known[row.id] = old
  end
  local version, status = row.version, 'ok'
  if version == 0 then
    version = old.version + 1
  elseif version <= old.version then
    status, version = version == old.version and 'duplicate' or 'older', old.version
  end
  if status == 'ok' then
    local size = #row.id + #row.content + #row.meta + #row.vector
    bytes = bytes + size - old.bytes
    if not old.written then
      if old.tier ~= tier then
        more = more + 1
        if old.tier then freed = freed + 1 end
      end
      if old.tier ~= tier or old.superseded ~= '' then shown = shown + 1 end
    end
    old.version, old.bytes, old.written = version, size, true
    written[#written + 1] = i
  end
  values[3 * i - 2], values[3 * i - 1], values[3 * i] = status, version, row.made == 1 and row.id or ''
end
local held = redis.call('HLEN', scope .. ':' .. tier .. ':hdr') + more
local moving = 0
if tier == 'im' then
  if more > 0 and held > limits.im_records then return {'full', 'records'} end
else
  -- The cap counts the records that recalls find. As many superseded ones may stay as the intermediate tier holds.
  local recalled = redis.call('ZCARD', scope .. ':stm:time') + shown
  if more > 0 and held - recalled > limits.im_records then return {'full', 'records'} end
  local over = recalled - limits.stm_records
  if over > 0 then
    local room = math.max(0, limits.im_records - redis.call('HLEN', scope .. ':im:hdr') + freed)
    if shown > 0 and math.min(over, shown) > room then return {'full', 'records'} end
    -- A lowered cap is reached in steps, so that no call moves more than 20 records beyond its own.
    moving = math.min(over, shown + 20, room)
  end
end
if bytes > 0 and memory_bytes(scope, tiers) + bytes > limits.bytes then return {'full', 'bytes'} end

local lifetime = tier == 'stm' and limits.stm_ms or limits.im_ms
-- A number is of one call, and a call stores one vector of a record at last.
local number = space ~= '' and now_us(now_arg) or 0
for _, i in ipairs(written) do
  local row = rows[i]
  local old = known[row.id]
  --@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
  local header = old.header
  -- A record that is replaced within its step keeps its place.
  local score
  if header and header.superseded == '' and header.deadline > now_ms and math.floor(header.score) == row.step then
    score = header.score
  end
  if header then remove_record(scope, old.tier, row.id, header) end
  local deadline = math.floor(now_ms + (row.ttl_ms > 0 and row.ttl_ms or lifetime))
  old.header, old.tier = {
    values[3 * i - 1], score or next_score(scope, tiers, row.step), row.importance, deadline, now_ms, row.kind, row.action,
    row.cell, row.subject, row.simulation, '', #row.id + #row.content + #row.meta + #row.vector, row.x,
    row.y, row.meta, row.type, row.ttl_ms > 0 and 1 or 0, row.vector ~= '' and number or 0,
  }, tier
  if row.vector ~= '' then put_vector(scope, row.id, number, row.vector, row.codes, row.space, row.indexed) end
  put_record(scope, tier, row.id, old.header, row.content, now_ms)
end
if moving > 0 then
  for _, id in ipairs(redis.call('ZRANGE', scope .. ':stm:time', 0, moving - 1)) do
    move_oldest(scope, id, now_ms + limits.im_ms, now_ms)
  end
end
values[#values + 1] = integer(number)
return close_memory(scope, 'store', caller, values)
