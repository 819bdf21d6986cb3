#!lua
-- Appends messages to a chat, except those whose ids it holds; drops its oldest messages beyond the caps.
-- returns: ok revision, number of the last message, new messages, dropped messages, then for each known message its
--          place in `rows` and its number | duplicate, the same | reused | fenced value | occupied value ms |
--          full what | again | erased (a person that a message is about was erased a moment ago)
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms summary_ms window_ms ops messages bytes sources
local source  = ARGV[3]                      -- str: source of the chat, encoded
local rows    = cmsgpack.unpack(ARGV[4])     -- rows: id version tokens turn subject links text
local now_arg = ARGV[5]                      -- time: test override, microseconds
--@include chat: open_chat, close_chat, any_erased, add_messages

local ids = {}
for i = 1, #rows do ids[i] = rows[i].id end
local mark = string.sub(redis.sha1hex(table.concat(ids, ' ')), 1, 8)
local chat, answer = open_chat(scope, 'append', source, caller, limits, now_arg, mark)
if not chat then return answer end
if any_erased(scope, chat, rows) then return {'erased'} end
local added, dropped, repeated = add_messages(scope, chat, rows)
return close_chat(scope, chat, {chat.base + chat.count, added, dropped, unpack(repeated)})
