#!lua flags=allow-oom
-- Empties a chat: messages, fields and summary. Numbers and revisions continue, so that no reader mistakes new messages
-- for old ones.
-- returns: ok revision | duplicate, the same | fenced value | occupied value ms | again
-- repeat: returns duplicate
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms summary_ms window_ms ops messages bytes sources
local source  = ARGV[3]                      -- str: source of the chat, encoded
local now_arg = ARGV[4]                      -- time: test override, microseconds
--@include time: integer
--@include chat: open_chat, close_chat, note_removal

local meta_key, list_key = scope .. ':chat:' .. source .. ':meta', scope .. ':chat:' .. source .. ':q'
local ids_key, sum_key = scope .. ':chat:' .. source .. ':id', scope .. ':chat:' .. source .. ':sum'
local chats_key = scope .. ':chats'
local known = redis.call('EXISTS', meta_key, list_key, sum_key) > 0
-- A session with too many chats may empty one that it does not list.
limits.sources = math.huge
local chat, answer = open_chat(scope, 'clear', source, caller, limits, now_arg)
if not chat then return answer end
local fields, own = redis.call('HKEYS', meta_key), {}
for i = 1, #fields do
  if string.sub(fields[i], 1, 2) == 'u:' then own[#own + 1] = fields[i] end
end
if #own > 0 then redis.call('HDEL', meta_key, unpack(own)) end
redis.call('UNLINK', list_key, ids_key, sum_key)
chat.rev = chat.rev + 1
chat.edited, chat.base = chat.rev, chat.base + chat.count
chat.trimmed, chat.count, chat.bytes, chat.tokens = chat.base, 0, 0, 0
redis.call('HSET', meta_key, 'cleared', integer(chat.rev))
redis.call('HDEL', meta_key, 'summed', 'own')
note_removal(scope, chat, limits.summary_ms)
local answered = close_chat(scope, chat, {})
-- A chat of which nothing was stored has a copy at best: it takes no place among the chats of the session.
if not known then redis.call('HDEL', chats_key, source) end
return answered
