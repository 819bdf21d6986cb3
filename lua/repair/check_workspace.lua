#!lua flags=allow-oom
-- Compares the counts of a session's workspace with what is there; with `repair` corrects the counts. Every change
-- counts exactly, so that a difference means a lost key.
-- codes: lost-counts (a workspace has data and no counts) | lost-items (it lacks items that it has counted)
--        | lost-events (its events are gone)
-- returns: per finding: row code place repaired (1 or 0); the place is a part that is gone
-- repeat: finds nothing that it has repaired
local scope   = KEYS[1]            -- key: root of the session's slot
local ttl_ms  = tonumber(ARGV[1])  -- int: lifetime of a workspace after a change
local repair  = ARGV[2]            -- str: 1 = repair what is found
local now_arg = ARGV[3]            -- time: test override, microseconds
--@include time: now_us, integer
--@include key: has_type

local now_ms = math.floor(now_us(now_arg) / 1000)
local meta_key, parts_key, events_key = scope .. ':meta', scope .. ':ws:parts', scope .. ':ws:ev'
local doc_key, task_key = scope .. ':ws:doc', scope .. ':ws:task'
local types, answers = {}, {}

local function note(code, place)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4] = 1, code, place, repair == '1' and 1 or 0
end

-- Returns the number of items of a key, and about their bytes, from up to 20 of them.
local function measure(key, type)
  local count, sample, size = 0, {}, 0
  if type == 'hash' then
    count = redis.call('HLEN', key)
    sample = count > 0 and redis.call('HRANDFIELD', key, 20, 'WITHVALUES') or {}
  elseif type == 'list' then
    count, sample = redis.call('LLEN', key), redis.call('LRANGE', key, -20, -1)
  elseif type == 'set' then
    count, sample = redis.call('SCARD', key), redis.call('SRANDMEMBER', key, 20)
  end
  for i = 1, #sample do size = size + #sample[i] end
  return count, count > 0 and size * count / math.min(count, 20) or 0
end

local sound = has_type(types, meta_key, 'hash') and has_type(types, parts_key, 'hash')
  and has_type(types, events_key, 'stream') and has_type(types, doc_key, 'hash') and has_type(types, task_key, 'hash')
if not sound then return answers end
local parts = redis.call('HKEYS', parts_key)
local items, bytes, left_ms, gone = 0, 0, -1, ''
for _, key in ipairs({doc_key, task_key}) do
  local count, size = measure(key, 'hash')
  items, bytes, left_ms = items + count, bytes + size, math.max(left_ms, redis.call('PTTL', key))
end
for i = 1, #parts do
  local part_key, type = scope .. ':' .. parts[i], nil
  if string.sub(parts[i], 1, 7) == 'ws:log:' then
    type = 'list'
  elseif string.sub(parts[i], 1, 7) == 'ws:set:' then
    type = 'set'
  elseif string.sub(parts[i], 1, 6) == 'agent:' then
    type = 'hash'
  end
  if type then
    -- A key of another type has no items; its own finding names it.
    if not has_type(types, part_key, type) then return answers end
    local count, size = measure(part_key, type)
    items, bytes, left_ms = items + count, bytes + size, math.max(left_ms, redis.call('PTTL', part_key))
    if type == 'list' and count == 0 then gone = parts[i] end
  end
end
left_ms = math.max(left_ms, redis.call('PTTL', events_key))
local meta = redis.call('HMGET', meta_key, 'rev', 'items', 'places')
local last = redis.call('XREVRANGE', events_key, '+', '-', 'COUNT', 1)[1]

if not meta.rev then
  if left_ms < 0 then return answers end
  if repair == '1' then
    -- Versions and revisions must not fall, or readers would take new values for old ones: the time is above all of them.
    local rev = now_ms
    local fields = last and last[2] or {}
    for i = 1, #fields, 2 do
      if fields[i] == 'r' then rev = tonumber(fields[i + 1]) end
    end
    local above, dies = integer(now_ms), now_ms + left_ms
    redis.call('HSET', meta_key, 'rev', integer(rev), 'items', items, 'bytes', integer(bytes), 'floor', above, 'top', above,
      'tail', above, 'born', above, 'fresh', integer(dies - math.floor(ttl_ms * 9 / 8)), 'dies', integer(dies))
    redis.call('PEXPIREAT', meta_key, integer(dies))
  end
  note('lost-counts', '')
  return answers
end
if tonumber(meta.items or 0) ~= items then
  if repair == '1' then redis.call('HSET', meta_key, 'items', items, 'bytes', integer(bytes)) end
  note('lost-items', gone)
end
if not last and (meta.places or '') ~= '' then
  if repair == '1' then redis.call('HSET', meta_key, 'noted', 0, 'places', '') end
  note('lost-events', '')
end
return answers
