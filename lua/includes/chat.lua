-- Changes of a chat: the messages of a session from one source.
--@include time: now_us, integer
--@include lock: refuse_change
--@include dedup: earlier_reply, store_reply
--@include erased: is_erased

-- Bytes of messages that a script reads beyond those that it adds.
local chat_read_bytes = 1048576

-- Time for which a chat stays at least after a change.
local turn_ms = 900000

-- Splits an entry of the list: number, revision, version, tokens ('null': not counted), ms, id.
local function split_entry(entry)
  return string.match(entry, '^(%d+),(%d+),(%d+),(%w+),(%d+),"([^"]+)",')
end

-- Formats a name, which is encoded, as JSON.
local function json_name(name)
  return name == '-' and 'null' or '"' .. name .. '"'
end

-- Stores the time at which a chat ends in its keys, and in the list of chats of the session.
local function extend_chat(scope, source, dies)
  local chats_key = scope .. ':chats'
  local meta_key, list_key = scope .. ':chat:' .. source .. ':meta', scope .. ':chat:' .. source .. ':q'
  local ids_key = scope .. ':chat:' .. source .. ':id'
  redis.call('PEXPIREAT', meta_key, integer(dies))
  redis.call('PEXPIREAT', list_key, integer(dies))
  redis.call('PEXPIREAT', ids_key, integer(dies))
  local listed = tonumber(redis.call('HGET', chats_key, source) or 0)
  -- A summary lives longer than its chat. The end falls with the lifetime that the settings allow.
  local ends = math.max(dies, redis.call('PEXPIRETIME', scope .. ':chat:' .. source .. ':sum'))
  if ends ~= listed then redis.call('HSET', chats_key, source, integer(ends)) end
  redis.call('PEXPIREAT', chats_key, integer(dies), 'NX')
  redis.call('PEXPIREAT', chats_key, integer(dies), 'GT')
end

-- Returns the time at which a chat ends that is changed now. What is being written stays for the time of a turn, also
-- when the chat is as old as it may become.
local function chat_end(now_ms, born, ttl_ms, life_ms)
  return math.max(math.min(now_ms + ttl_ms * 9 / 8, born + life_ms), now_ms + math.min(ttl_ms, turn_ms))
end

-- Counts up to 500 messages of a chat again, from its end, after a key of it was lost; stores their ids again. No change
-- is made before all are counted, because an id that is not stored yet would be appended twice.
local function recount_chat(scope, chat, length, counted)
  local meta_key = scope .. ':chat:' .. chat.source .. ':meta'
  local list_key, ids_key = scope .. ':chat:' .. chat.source .. ':q', scope .. ':chat:' .. chat.source .. ':id'
  if counted == 0 then
    redis.call('UNLINK', ids_key)
    chat.bytes, chat.tokens = 0, 0
  end
  local ids, read, last = {}, 0, length - 1 - counted
  while last >= 0 and #ids < 1000 and read < chat_read_bytes do
    local first = math.max(0, last - 9)
    local block = redis.call('LRANGE', list_key, first, last)
    for i = 1, #block do
      local number, revision, _, tokens, _, id = split_entry(block[i])
      chat.rev = math.max(chat.rev, tonumber(revision))
      read, chat.tokens = read + #block[i], chat.tokens + (tonumber(tokens) or 0)
      ids[#ids + 1] = id
      ids[#ids + 1] = number
    end
    counted, last = counted + #block, first - 1
  end
  redis.call('HSET', ids_key, unpack(ids))
  chat.base = tonumber((split_entry(redis.call('LINDEX', list_key, 0)))) - 1
  chat.trimmed = math.min(chat.trimmed, chat.base)
  local dies = chat_end(chat.now_ms, chat.born, chat.ttl_ms, chat.life_ms)
  redis.call('HSET', meta_key,
    'rev', integer(chat.rev), 'edited', integer(chat.edited), 'base', integer(chat.base), 'count', length,
    'bytes', integer(chat.bytes + read), 'tokens', integer(chat.tokens), 'trimmed', integer(chat.trimmed),
    'born', integer(chat.born), 'fresh', integer(chat.now_ms), 'dies', integer(dies), 'counted', counted)
  if counted == length then redis.call('HDEL', meta_key, 'counted') end
  extend_chat(scope, chat.source, dies)
end

-- Begins a change of a chat. Returns its state, or nil and the reply: `duplicate` and the first call's result, `reused`
-- (the op id belongs to a change with another `mark`), why the caller may not make it (`refuse_change`), `full sources`,
-- or `again` (a key was lost, and a part of it was made again: the caller repeats the call).
--@row caller: op lock token agent exclusive
--@row limits: ttl_ms life_ms summary_ms window_ms ops messages bytes sources
local function open_chat(scope, kind, source, caller, limits, override, mark)
  local now = now_us(override)
  local chat = {
    op = 'chat-' .. kind .. ':' .. source .. ':' .. caller.op, mark = mark or '', source = source, now_ms = math.floor(now / 1000),
    ttl_ms = limits.ttl_ms, life_ms = limits.life_ms, window_ms = limits.window_ms, ops = limits.ops,
    max_messages = limits.messages, max_bytes = limits.bytes,
  }
  local reply = earlier_reply(scope, chat.op)
  if reply then
    if table.remove(reply, 2) ~= chat.mark then return nil, {'reused'} end
    return nil, reply
  end
  local chats_key, sum_key = scope .. ':chats', scope .. ':chat:' .. source .. ':sum'
  local meta_key, list_key = scope .. ':chat:' .. source .. ':meta', scope .. ':chat:' .. source .. ':q'
  local ids_key = scope .. ':chat:' .. source .. ':id'
  local meta = redis.call('HMGET', meta_key,
    'rev', 'edited', 'base', 'count', 'bytes', 'tokens', 'trimmed', 'born', 'fresh', 'dies', 'version', 'counted')
  local length, known = redis.call('LLEN', list_key), redis.call('HLEN', ids_key)
  local upto = not meta.rev and redis.call('HGET', sum_key, 'upto') or 0
  local refused = refuse_change(scope, caller)
  if refused then return nil, refused end
  local listed = redis.call('HEXISTS', chats_key, source) == 1
  if not listed and length == 0 and redis.call('HLEN', chats_key) >= limits.sources then
    local names, ends = redis.call('HKEYS', chats_key), redis.call('HVALS', chats_key)
    local ended = {}
    for i = 1, #names do
      if tonumber(ends[i]) < chat.now_ms then ended[#ended + 1] = names[i] end
    end
    if #ended == 0 then return nil, {'full', 'sources'} end
    redis.call('HDEL', chats_key, unpack(ended))
  end

  -- A revision is at least the time in us, so that they rise over the end or the loss of a chat, and over a failover to
  -- a replica that lacks the last changes; its numbers go on behind those that its summary covers.
  chat.known_rev, chat.edited = tonumber(meta.rev or now), tonumber(meta.edited or now)
  chat.rev = math.max(chat.known_rev, now - 1)
  chat.opened_rev = chat.rev
  chat.base, chat.count = tonumber(meta.base or upto), tonumber(meta.count or 0)
  chat.bytes, chat.tokens = tonumber(meta.bytes or 0), tonumber(meta.tokens or 0)
  -- Messages that a summary covers have ended before it.
  chat.trimmed, chat.version = tonumber(meta.trimmed or upto), tonumber(meta.version or 0)
  chat.born, chat.fresh = tonumber(meta.born or chat.now_ms), tonumber(meta.fresh or 0)
  -- An eighth of the lifetime must pass before it is extended, so that most calls extend no key.
  chat.moved = chat.now_ms >= chat.fresh + chat.ttl_ms / 8 or length == 0 or not listed
    or tonumber(meta.dies or 0) < chat.now_ms + math.min(chat.ttl_ms, turn_ms) / 2
  local lost_ids = known < length
    and redis.call('HEXISTS', ids_key, (select(6, split_entry(redis.call('LINDEX', list_key, -1))))) == 0
  if length == 0 and chat.count > 0 then
    chat.base, chat.count, chat.bytes, chat.tokens = chat.base + chat.count, 0, 0, 0
    redis.call('UNLINK', ids_key)
    redis.call('HDEL', meta_key, 'counted')
  elseif length ~= chat.count or lost_ids or meta.counted then
    local whole = length ~= chat.count or lost_ids
    recount_chat(scope, chat, length, whole and 0 or tonumber(meta.counted))
    return nil, {'again'}
  end
  return chat
end

-- Ends a change of a chat: stores counts, op id and lifetime, and returns ok, the revision, and `answer`.
local function close_chat(scope, chat, answer)
  local meta_key = scope .. ':chat:' .. chat.source .. ':meta'
  if chat.rev == chat.opened_rev then chat.rev = chat.known_rev end
  redis.call('HSET', meta_key,
    'rev', integer(chat.rev), 'edited', integer(chat.edited), 'base', integer(chat.base), 'count', integer(chat.count),
    'bytes', integer(chat.bytes), 'tokens', integer(chat.tokens), 'trimmed', integer(chat.trimmed))
  if chat.moved then
    local dies = chat_end(chat.now_ms, chat.born, chat.ttl_ms, chat.life_ms)
    redis.call('HSET', meta_key, 'born', integer(chat.born), 'fresh', integer(chat.now_ms), 'dies', integer(dies))
    extend_chat(scope, chat.source, dies)
  end
  store_reply(scope, chat.op, chat.window_ms, chat.ops, {chat.mark, chat.rev, unpack(answer)})
  return {'ok', chat.rev, unpack(answer)}
end

-- Returns whether one of the messages is about a person who was erased a moment ago.
--@rows rows: id version tokens turn subject links text
local function any_erased(scope, chat, rows)
  for i = 1, #rows do
    local row = rows[i]
    if row.subject ~= '-' and is_erased(scope, redis.sha1hex(row.subject), chat.now_ms) then return true end
  end
  return false
end

-- Formats an entry of the list: a JSON array without its brackets.
--@row row: id version tokens turn subject links text
local function format_entry(row, number, revision, ms)
  return integer(number) .. ',' .. integer(revision) .. ',' .. integer(row.version) .. ',' .. row.tokens .. ','
    .. integer(ms) .. ',"' .. row.id .. '",' .. json_name(row.turn) .. ',' .. json_name(row.subject) .. ','
    .. row.links .. ',' .. row.text
end

-- Drops the oldest messages of a chat while it is above its caps; keeps the newest. A lowered cap is reached in steps: a
-- call drops at most 500 messages and 1 MiB more than it has `added`.
local function drop_oldest(scope, chat, added, added_bytes)
  local list_key, ids_key = scope .. ':chat:' .. chat.source .. ':q', scope .. ':chat:' .. chat.source .. ':id'
  local dropped, read = 0, 0
  while chat.count > 1 and (chat.count > chat.max_messages or chat.bytes > chat.max_bytes)
    and dropped < added + 500 and read < added_bytes + chat_read_bytes do
    local mean = math.max(1, chat.bytes / chat.count)
    local wanted = math.max(chat.count - chat.max_messages, math.ceil((chat.bytes - chat.max_bytes) / mean), 1)
    wanted = math.min(wanted, chat.count - 1, added + 500 - dropped, math.max(1, math.floor(chat_read_bytes / 4 / mean)))
    local block = redis.call('LRANGE', list_key, 0, math.min(wanted, 500) - 1)
    local ids, numbers, gone = {}, {}, {}
    for i = 1, #block do
      if chat.count <= chat.max_messages and chat.bytes <= chat.max_bytes then break end
      local number, _, _, tokens, _, id = split_entry(block[i])
      ids[i], numbers[i] = id, number
      chat.count, chat.base, chat.trimmed = chat.count - 1, chat.base + 1, chat.trimmed + 1
      chat.bytes, chat.tokens = chat.bytes - #block[i], chat.tokens - (tonumber(tokens) or 0)
      read = read + #block[i]
    end
    redis.call('LTRIM', list_key, #ids, -1)
    local stored = redis.call('HMGET', ids_key, unpack(ids))
    for i = 1, #ids do
      if stored[i] == numbers[i] then gone[#gone + 1] = ids[i] end
    end
    if #gone > 0 then redis.call('HDEL', ids_key, unpack(gone)) end
    dropped = dropped + #ids
  end
  return dropped
end

-- Adds messages to the end of a chat, except known ones, and drops the oldest beyond the caps. Returns the number of
-- new ones, of dropped ones, and for each known one its place in `rows` and its number.
--@rows rows: id version tokens turn subject links text
local function add_messages(scope, chat, rows)
  local list_key, ids_key = scope .. ':chat:' .. chat.source .. ':q', scope .. ':chat:' .. chat.source .. ':id'
  local ids, new, entries, numbered, repeated, bytes = {}, {}, {}, {}, {}, 0
  for i = 1, #rows do ids[i] = rows[i].id end
  local stored = redis.call('HMGET', ids_key, unpack(ids))
  for i = 1, #rows do
    local row = rows[i]
    local number = new[row.id] or tonumber(stored[i] or 0)
    if number > chat.base and number <= chat.base + chat.count + #entries then
      repeated[#repeated + 1] = i
      repeated[#repeated + 1] = number
    else
      number = chat.base + chat.count + #entries + 1
      new[row.id] = number
      chat.rev = chat.rev + 1
      local entry = format_entry(row, number, chat.rev, chat.now_ms)
      entries[#entries + 1] = entry
      numbered[#numbered + 1] = row.id
      numbered[#numbered + 1] = integer(number)
      bytes = bytes + #entry
      chat.tokens = chat.tokens + (tonumber(row.tokens) or 0)
    end
  end
  if #entries == 0 then return 0, 0, repeated end
  redis.call('RPUSH', list_key, unpack(entries))
  redis.call('HSET', ids_key, unpack(numbered))
  chat.count, chat.bytes = chat.count + #entries, chat.bytes + bytes
  return #entries, drop_oldest(scope, chat, #entries, bytes), repeated
end

-- Notes a removal that a second storage does not have yet; the note outlives the chat. `number` is that of a popped
-- message, or nil if all were removed.
local function note_removal(scope, chat, keep_ms, number)
  local meta_key, gone_key = scope .. ':chat:' .. chat.source .. ':meta', scope .. ':chat:' .. chat.source .. ':gone'
  local meta = redis.call('HMGET', meta_key, 'saved', 'ahead')
  if not meta.saved then return end
  if number then
    local place = number + tonumber(meta.ahead or 0)
    local least = tonumber(redis.call('HGET', gone_key, 'number') or place)
    redis.call('HSET', gone_key, 'number', integer(math.min(least, place)), 'rev', integer(chat.rev))
  else
    redis.call('HSET', gone_key, 'cleared', integer(chat.rev))
    redis.call('HDEL', gone_key, 'number', 'rev')
  end
  redis.call('PEXPIREAT', gone_key, integer(chat.now_ms + keep_ms))
end
