-- Records of a memory: of an agent, a user, a domain, or all.
-- `TIER:hdr` has the header of each record, so that no script parses its content; names in it are encoded as in keys.
--@include time: day_s, now_us, integer
--@include lock: refuse_change
--@include dedup: earlier_reply, store_reply
--@include key: extend_life
--@include vectors: check_vector_keys, drop_vector, extend_vectors

-- Splits what a caller gives as its op: the op id, and behind a line end a digest of the records that the change names.
local function split_op(op)
  local id, digest = string.match(op, '^([^\n]*)\n(.*)$')
  return id or op, digest or ''
end

-- Begins a change of a memory. Returns the time in ms, or nil and the reply: `duplicate` and the first call's
-- result, `another` if the op id has named other records, or why the caller may not make it.
--@row caller: op lock token agent exclusive
local function open_memory(scope, verb, caller, override)
  local op, digest = split_op(caller.op)
  local reply = earlier_reply(scope, verb .. ':' .. op)
  if reply then
    if table.remove(reply, 2) ~= digest then return nil, {'another'} end
    return nil, reply
  end
  reply = refuse_change(scope, caller)
  if reply then return nil, reply end
  return math.floor(now_us(override) / 1000)
end

-- Ends a change of a memory: stores the values that it returns, without content. Returns ok, the values, and
-- what has to follow: 1 indices of simulations, 2 the vector set, 3 both, 0 nothing.
--@row caller: op lock token agent exclusive
local function close_memory(scope, verb, caller, values)
  local op, digest = split_op(caller.op)
  store_reply(scope, verb .. ':' .. op, 600000, 20000, {digest, unpack(values)})
  local reply = {'ok', unpack(values)}
  reply[#reply + 1] = (redis.call('HLEN', scope .. ':sim:pending') > 1 and 1 or 0)
    + 2 * redis.call('EXISTS', scope .. ':vec:pending')
  return reply
end

-- Returns the header of a record; nil when the tier does not hold it.
local function read_header(scope, tier, id)
  local packed = redis.call('HGET', scope .. ':' .. tier .. ':hdr', id)
  if packed then return cmsgpack.unpack(packed) end
end

-- Returns the tier that holds a record, and its header; nil when there is none or it has expired.
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local function find_record(scope, id, now_ms)
  for _, tier in ipairs({'stm', 'im'}) do
    local header = read_header(scope, tier, id)
    if header and header.deadline > now_ms then return tier, header end
  end
end

-- Returns the tiers that a store must look at: those that hold records, and `tier`. A memory without intermediate
-- records needs fewer commands.
local function used_tiers(scope, tier)
  if tier == 'stm' and redis.call('EXISTS', scope .. ':im:hdr') == 0 then return {'stm'} end
  return {'stm', 'im'}
end

-- Returns the bytes of all records of a memory.
local function memory_bytes(scope, tiers)
  local bytes = 0
  for _, tier in ipairs(tiers) do
    bytes = bytes + tonumber(redis.call('HGET', scope .. ':' .. tier .. ':meta', 'bytes') or 0)
  end
  return bytes
end

-- Returns the score of a new record of a step: behind the newest one of the step. At most 4096 records of a step have
-- scores of their own; those behind them share the last one, and are in order of their ids.
local function next_score(scope, tiers, step)
  local score = step
  for _, tier in ipairs(tiers) do
    local newest = redis.call('ZRANGE', scope .. ':' .. tier .. ':time', '(' .. integer(step + 1), integer(step),
      'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2]
    if newest then score = math.max(score, tonumber(newest) + 1 / 4096) end
  end
  return math.min(score, step + 4095 / 4096)
end

-- Notes that the indices of a record's simulation, which are in another slot, have to list it, or no longer. The client
-- makes the change and removes the note; `sweep` and the repair walk make up for a client that died. The note with the
-- highest number of a record counts.
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local function note_listing(scope, id, header, listed)
  if header.simulation == '' then return end
  local pending_key = scope .. ':sim:pending'
  local number = math.max(now_us(''), tonumber(redis.call('HGET', pending_key, '') or 0) + 1)
  redis.call('HSET', pending_key, '', integer(number), header.simulation .. ' ' .. id, cmsgpack.pack({
    number, listed, math.floor(header.score), header.type, header.cell, header.x or 0, header.y or 0, header.deadline,
  }))
  extend_life(pending_key, math.max(7 * day_s * 1000, header.deadline - math.floor(number / 1000)))
end

-- Adds a record to the indices that recalls read.
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local function index_record(scope, tier, id, header)
  local stem_key = scope .. ':' .. tier
  redis.call('ZADD', stem_key .. ':time', header.score, id)
  redis.call('ZADD', stem_key .. ':imp', header.importance, id)
  redis.call('ZADD', stem_key .. ':kind:' .. header.kind, header.score, id)
  if header.action ~= '' then redis.call('ZADD', stem_key .. ':act:' .. header.action, header.score, id) end
  if header.cell ~= '' then redis.call('ZADD', stem_key .. ':cell:' .. header.cell, header.score, id) end
  note_listing(scope, id, header, 1)
end

-- Removes a record from the indices that recalls read. It stays in `exp` and `subj`, by which `sweep` and `erase` find
-- it.
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local function unindex_record(scope, tier, id, header)
  local stem_key = scope .. ':' .. tier
  redis.call('ZREM', stem_key .. ':time', id)
  redis.call('ZREM', stem_key .. ':imp', id)
  redis.call('ZREM', stem_key .. ':kind:' .. header.kind, id)
  if header.action ~= '' then redis.call('ZREM', stem_key .. ':act:' .. header.action, id) end
  if header.cell ~= '' then redis.call('ZREM', stem_key .. ':cell:' .. header.cell, id) end
  note_listing(scope, id, header, 0)
end

-- Removes a record from its tier with all its entries there. Its vector stays.
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local function leave_tier(scope, tier, id, header)
  local stem_key = scope .. ':' .. tier
  unindex_record(scope, tier, id, header)
  if header.subject ~= '' then redis.call('ZREM', stem_key .. ':subj:' .. header.subject, id) end
  redis.call('ZREM', stem_key .. ':exp', id)
  redis.call('HDEL', stem_key .. ':acc', id)
  redis.call('HDEL', stem_key .. ':rec', id)
  redis.call('HDEL', stem_key .. ':hdr', id)
  -- A count that was lost is not created here, where it would get no lifetime.
  if redis.call('HINCRBY', stem_key .. ':meta', 'bytes', -header.bytes) < 0 then
    redis.call('UNLINK', stem_key .. ':meta')
  end
end

-- Removes a record with all its entries and its vector.
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local function remove_record(scope, tier, id, header)
  leave_tier(scope, tier, id, header)
  drop_vector(scope, id, header)
end

-- Notes in the header of a record that it has no vector, because the stored one is lost.
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local function clear_vector(scope, tier, id, header)
  local stem_key = scope .. ':' .. tier
  local bytes = #id + redis.call('HSTRLEN', stem_key .. ':rec', id) + #header.meta
  redis.call('HINCRBY', stem_key .. ':meta', 'bytes', bytes - header.bytes)
  header.vector, header.bytes = 0, bytes
  redis.call('HSET', stem_key .. ':hdr', id, cmsgpack.pack(header))
end

-- Extends the keys that have entries of a record to its deadline at least. Those of the tier end together, an eighth
-- of the retention later, so that most calls only give a lifetime to keys that are new.
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local function extend_keys(scope, tier, id, header, now_ms)
  local stem_key = scope .. ':' .. tier
  local dies = redis.call('PEXPIRETIME', stem_key .. ':hdr')
  if dies < header.deadline then
    dies = math.floor(header.deadline + (header.deadline - now_ms) / 8)
    for _, part in ipairs({':hdr', ':rec', ':meta', ':exp', ':time', ':imp', ':acc'}) do
      redis.call('PEXPIREAT', stem_key .. part, dies)
    end
  else
    for _, part in ipairs({':rec', ':meta', ':exp', ':time', ':imp'}) do
      redis.call('PEXPIREAT', stem_key .. part, dies, 'NX')
    end
  end
  redis.call('PEXPIREAT', stem_key .. ':kind:' .. header.kind, dies)
  if header.action ~= '' then redis.call('PEXPIREAT', stem_key .. ':act:' .. header.action, dies) end
  if header.cell ~= '' then redis.call('PEXPIREAT', stem_key .. ':cell:' .. header.cell, dies) end
  if header.subject ~= '' then redis.call('PEXPIREAT', stem_key .. ':subj:' .. header.subject, dies) end
  if (header.vector or 0) > 0 then extend_vectors(scope, id, dies) end
end

-- Reads from each key that new records get entries in, so that a key of another type fails the call before its first
-- write. Else a part of a record would stay, in keys without a lifetime.
--@rows rows: id made step kind action cell subject simulation type importance ttl_ms version x y meta content vector codes space indexed
local function check_indices(scope, tier, rows)
  local stem_key = scope .. ':' .. tier
  redis.call('HLEN', stem_key .. ':rec')
  redis.call('HLEN', stem_key .. ':hdr')
  redis.call('HLEN', stem_key .. ':meta')
  redis.call('HLEN', stem_key .. ':acc')
  redis.call('ZCARD', stem_key .. ':exp')
  redis.call('ZCARD', stem_key .. ':time')
  redis.call('ZCARD', stem_key .. ':imp')
  local seen = {}
  -- Reads one index, once in a call.
  local function check_index(family, name)
    local part = family .. name
    if name == '' or seen[part] then return end
    seen[part] = true
    redis.call('ZCARD', stem_key .. part)
  end
  for i = 1, #rows do
    check_index(':kind:', rows[i].kind)
    check_index(':act:', rows[i].action)
    check_index(':cell:', rows[i].cell)
    check_index(':subj:', rows[i].subject)
    if rows[i].vector ~= '' and not seen.vector then
      seen.vector = true
      check_vector_keys(scope)
    end
    if rows[i].simulation ~= '' and not seen.simulation then
      seen.simulation = true
      redis.call('HLEN', scope .. ':sim:pending')
    end
  end
end

-- Writes a record that the tier does not hold, with all its entries. A superseded one is in no index of recalls.
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local function put_record(scope, tier, id, header, content, now_ms)
  local stem_key = scope .. ':' .. tier
  redis.call('HSET', stem_key .. ':rec', id, content)
  redis.call('HSET', stem_key .. ':hdr', id, cmsgpack.pack(header))
  redis.call('ZADD', stem_key .. ':exp', header.deadline, id)
  redis.call('HINCRBY', stem_key .. ':meta', 'bytes', header.bytes)
  if header.subject ~= '' then redis.call('ZADD', stem_key .. ':subj:' .. header.subject, header.score, id) end
  if header.superseded == '' then index_record(scope, tier, id, header) end
  extend_keys(scope, tier, id, header, now_ms)
end

-- Returns the entry of a record in the outbox, and its header; nil when it does not wait there.
local function find_waiting(scope, id)
  local entry = redis.call('HGET', scope .. ':ltm:ids', id)
  local found = entry and redis.call('XRANGE', scope .. ':ltm:out', entry, entry)[1]
  if not found then return end
  for at = 1, #found[2], 2 do
    if found[2][at] == 'h' then return entry, cmsgpack.unpack(found[2][at + 1]) end
  end
end

-- Removes a record from the outbox. Notes the entry for a day: a program that saves it at this moment learns from
-- `acknowledge` that it has to delete it again. Returns 1, or 0 when there is no such entry.
local function remove_waiting(scope, id, entry, now_ms)
  local gone_key = scope .. ':ltm:gone'
  if redis.call('HGET', scope .. ':ltm:ids', id) == entry then redis.call('HDEL', scope .. ':ltm:ids', id) end
  if redis.call('XDEL', scope .. ':ltm:out', entry) == 0 then return 0 end
  redis.call('ZREMRANGEBYSCORE', gone_key, '-inf', integer(now_ms - day_s * 1000))
  redis.call('ZADD', gone_key, integer(now_ms), entry)
  redis.call('PEXPIRE', gone_key, day_s * 1000)
  return 1
end

-- Gives a record the entries that it lacks; returns 1 if there were any, else 0.
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local function restore_entries(scope, tier, id, header, now_ms)
  local stem_key = scope .. ':' .. tier
  local parts = {':exp'}
  if header.subject ~= '' then parts[#parts + 1] = ':subj:' .. header.subject end
  if header.superseded == '' then
    for _, part in ipairs({':time', ':imp', ':kind:' .. header.kind}) do parts[#parts + 1] = part end
    if header.action ~= '' then parts[#parts + 1] = ':act:' .. header.action end
    if header.cell ~= '' then parts[#parts + 1] = ':cell:' .. header.cell end
  end
  local lacks = false
  for i = 1, #parts do lacks = lacks or not redis.call('ZSCORE', stem_key .. parts[i], id) end
  if not lacks then return 0 end
  redis.call('ZADD', stem_key .. ':exp', header.deadline, id)
  if header.subject ~= '' then redis.call('ZADD', stem_key .. ':subj:' .. header.subject, header.score, id) end
  if header.superseded == '' then index_record(scope, tier, id, header) end
  extend_keys(scope, tier, id, header, now_ms)
  return 1
end

-- Removes entries without a record beside those of a record, up to 100 on each side. Returns their number. A sweep of all
-- records removes those of each index that lists one.
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local function remove_orphans_beside(scope, tier, id, header)
  local stem_key, removed = scope .. ':' .. tier, 0
  local hdr_key = stem_key .. ':hdr'
  local keys = {}
  if header.subject ~= '' then keys[1] = stem_key .. ':subj:' .. header.subject end
  if header.superseded == '' then
    keys[#keys + 1] = stem_key .. ':kind:' .. header.kind
    if header.action ~= '' then keys[#keys + 1] = stem_key .. ':act:' .. header.action end
    if header.cell ~= '' then keys[#keys + 1] = stem_key .. ':cell:' .. header.cell end
  end
  for _, key in ipairs(keys) do
    local rank = redis.call('ZRANK', key, id)
    if rank then
      -- Behind the record first, so that its rank stays.
      for _, step in ipairs({1, -1}) do
        local at, gone = rank + step, {}
        while at >= 0 and #gone < 100 do
          local beside = redis.call('ZRANGE', key, at, at)[1]
          if not beside or redis.call('HEXISTS', hdr_key, beside) == 1 then break end
          gone[#gone + 1] = beside
          at = at + step
        end
        if #gone > 0 then removed = removed + redis.call('ZREM', key, unpack(gone)) end
      end
    end
  end
  return removed
end

-- Moves a record to the other tier. It gets a new deadline, unless it has a retention of its own.
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local function move_record(scope, from, to, id, header, deadline, now_ms)
  local content = redis.call('HGET', scope .. ':' .. from .. ':rec', id)
  local touched = redis.call('HGET', scope .. ':' .. from .. ':acc', id)
  local to_acc_key = scope .. ':' .. to .. ':acc'
  --@row moved: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
  local moved = {unpack(header)}
  if header.own == 0 then moved.deadline = deadline end
  put_record(scope, to, id, moved, content or '', now_ms)
  if touched then
    redis.call('HSET', to_acc_key, id, touched)
    redis.call('PEXPIREAT', to_acc_key, redis.call('PEXPIRETIME', scope .. ':' .. to .. ':hdr'))
  end
  leave_tier(scope, from, id, header)
  if moved.superseded == '' then note_listing(scope, id, moved, 1) end
end

-- Moves a short-term record to the intermediate tier because others exceed the cap. Returns false, and removes the entry
-- that counts for the cap, when there is no record: Redis may have evicted it.
local function move_oldest(scope, id, deadline, now_ms)
  local header = read_header(scope, 'stm', id)
  if not header then
    redis.call('ZREM', scope .. ':stm:time', id)
    return false
  end
  move_record(scope, 'stm', 'im', id, header, deadline, now_ms)
  return true
end

-- Removes up to `most` expired records of a tier, with all their entries. Returns their ids.
local function remove_expired_records(scope, tier, now_ms, most)
  local exp_key = scope .. ':' .. tier .. ':exp'
  local ids = redis.call('ZRANGE', exp_key, '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, most)
  for _, id in ipairs(ids) do
    local header = read_header(scope, tier, id)
    if header then remove_record(scope, tier, id, header) else redis.call('ZREM', exp_key, id) end
  end
  return ids
end
