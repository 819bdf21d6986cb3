#!lua
-- Adds messages from a second storage before the first message of a chat. Leaves out those whose ids
-- the chat holds, and those about people who were erased a moment ago.
-- A message gets the number before the next one, and keeps its revision if it had that number.
-- returns: ok revision, new messages, number of the last message before the first | duplicate, the same | fenced value |
--          occupied value ms | full what | again | changed number of the last message before the first, messages | late (the
--          present messages are too many for other numbers)
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms summary_ms window_ms ops messages bytes sources
local source  = ARGV[3]                      -- str: source of the chat, encoded
local rows    = cmsgpack.unpack(ARGV[4])     -- rows: number revision ms id version tokens turn subject links text
local base    = tonumber(ARGV[5])            -- int: number of the last message before the first, as the caller knows it
local shift   = tonumber(ARGV[6])            -- int: by how much the numbers of the present messages rise; they are few
local trimmed = tonumber(ARGV[7])            -- int: messages that are not missing at the beginning; -1: more rows follow
local now_arg = ARGV[8]                      -- time: test override, microseconds
--@include time: integer
--@include erased: is_erased
--@include chat: open_chat, close_chat, split_entry, json_name

-- Formats an entry of the list, as `format_entry`.
--@row row: number revision ms id version tokens turn subject links text
local function format_restored(row, number, revision)
  return integer(number) .. ',' .. integer(revision) .. ',' .. integer(row.version) .. ',' .. row.tokens .. ','
    .. integer(row.ms) .. ',"' .. row.id .. '",' .. json_name(row.turn) .. ',' .. json_name(row.subject) .. ','
    .. row.links .. ',' .. row.text
end

local list_key, ids_key = scope .. ':chat:' .. source .. ':q', scope .. ':chat:' .. source .. ':id'
local meta_key = scope .. ':chat:' .. source .. ':meta'
local chat, answer = open_chat(scope, 'restore', source, caller, limits, now_arg)
if not chat then return answer end
if shift > 0 and (chat.count > 500 or chat.bytes > 1048576) then return {'late'} end
local marked = shift > 0 and redis.call('HEXISTS', meta_key, 'saved') == 1
if chat.base ~= base or marked then return {'changed', chat.base, chat.count} end
chat.rev = chat.rev + 1
if shift > 0 then
  chat.base = chat.base + shift
  -- Extraction counts by the old numbers; it begins again.
  local fields = redis.call('HKEYS', meta_key)
  for i = 1, #fields do
    if string.sub(fields[i], 1, 2) == 'x:' then redis.call('HDEL', meta_key, fields[i]) end
  end
  local present = redis.call('LRANGE', list_key, 0, -1)
  for i = 1, #present do
    local _, _, _, _, _, id = split_entry(present[i])
    chat.rev = chat.rev + 1
    local rest = string.match(present[i], '^%d+,%d+,(.*)$')
    local entry = integer(chat.base + i) .. ',' .. integer(chat.rev) .. ',' .. rest
    redis.call('LSET', list_key, i - 1, entry)
    chat.bytes = chat.bytes + #entry - #present[i]
    redis.call('HSET', ids_key, id, integer(chat.base + i))
  end
end
local added, ids = 0, {}
for i = 1, #rows do ids[i] = rows[i].id end
local stored = #ids > 0 and redis.call('HMGET', ids_key, unpack(ids)) or {}
for i = #rows, 1, -1 do
  local row = rows[i]
  local gone = row.subject ~= '-' and is_erased(scope, redis.sha1hex(row.subject), chat.now_ms)
  if chat.base > 0 and not gone and (not stored[i] or tonumber(stored[i]) <= chat.base) then
    local revision = row.revision
    if row.number ~= chat.base then
      chat.rev = chat.rev + 1
      revision = chat.rev
    end
    local entry = format_restored(row, chat.base, revision)
    redis.call('LPUSH', list_key, entry)
    redis.call('HSET', ids_key, row.id, integer(chat.base))
    chat.base, chat.count, added = chat.base - 1, chat.count + 1, added + 1
    chat.bytes, chat.tokens = chat.bytes + #entry, chat.tokens + (tonumber(row.tokens) or 0)
    chat.rev = math.max(chat.rev, revision)
  end
end
-- A reader that knows the chat reads all of it again.
chat.edited, chat.trimmed, chat.moved = chat.rev, math.min(math.max(chat.trimmed, trimmed), chat.base), true
local kept = close_chat(scope, chat, {added, chat.base})
-- The caller stores the summary that it found; without one, no reader looks for it again.
redis.call('HDEL', meta_key, 'summed')
if trimmed >= 0 then redis.call('HSET', meta_key, 'lost', integer(chat.base - chat.trimmed)) end
redis.call('HSETNX', meta_key, 'saved', 1)
return kept
