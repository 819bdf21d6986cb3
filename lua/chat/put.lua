#!lua
-- Replaces a message of a chat, which keeps its number, its time, and its turn and person unless others are given.
-- modes: newer (the version must be higher than the stored one; a new id is appended) | is (the stored version must be
--        this one, and rises by 1)
-- returns: ok revision, 1 or 0 (not newer), version, number | duplicate, the same | reused | fenced value |
--          occupied value ms | full what | again | conflict version (0: no such message) | erased (as append)
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms summary_ms window_ms ops messages bytes sources
local source  = ARGV[3]                      -- str: source of the chat, encoded
local rows    = cmsgpack.unpack(ARGV[4])     -- rows: id version tokens turn subject links text
local mode    = ARGV[5]                      -- str: newer or is
local now_arg = ARGV[6]                      -- time: test override, microseconds
--@include chat: open_chat, close_chat, any_erased, format_entry, add_messages, drop_oldest

local list_key, ids_key = scope .. ':chat:' .. source .. ':q', scope .. ':chat:' .. source .. ':id'
local mark = string.sub(redis.sha1hex(mode .. ' ' .. rows[1].id), 1, 8)
local chat, answer = open_chat(scope, 'put', source, caller, limits, now_arg, mark)
if not chat then return answer end
if any_erased(scope, chat, rows) then return {'erased'} end
local row = rows[1]
local number = tonumber(redis.call('HGET', ids_key, row.id) or 0)
if number <= chat.base or number > chat.base + chat.count then
  if mode == 'is' then return {'conflict', 0} end
  add_messages(scope, chat, rows)
  return close_chat(scope, chat, {1, row.version, chat.base + chat.count})
end
local at = number - chat.base - 1
local old = redis.call('LINDEX', list_key, at)
local _, _, version, tokens, ms, _, turn, subject = string.match(
  old, '^(%d+),(%d+),(%d+),(%w+),(%d+),([^,]+),([^,]+),([^,]+),')
version = tonumber(version)
if mode == 'is' then
  if version ~= row.version then return {'conflict', version} end
  row.version = version + 1
elseif version >= row.version then
  return close_chat(scope, chat, {0, version, number})
end
if row.turn == '-' and turn ~= 'null' then row.turn = string.sub(turn, 2, -2) end
if row.subject == '-' and subject ~= 'null' then row.subject = string.sub(subject, 2, -2) end
chat.rev = chat.rev + 1
chat.edited = chat.rev
local entry = format_entry(row, number, chat.rev, tonumber(ms))
redis.call('LSET', list_key, at, entry)
chat.bytes = chat.bytes + #entry - #old
chat.tokens = chat.tokens + (tonumber(row.tokens) or 0) - (tonumber(tokens) or 0)
drop_oldest(scope, chat, 0, #entry)
return close_chat(scope, chat, {1, row.version, number})
