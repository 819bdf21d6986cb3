#!lua flags=allow-oom
-- Removes the oldest messages of a chat until `keep` are left, up to 500 and 1 MiB per call.
-- returns: ok revision (0: there are no messages), removed messages, messages left | duplicate, the same | fenced value | occupied value ms |
--          again
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms summary_ms window_ms ops messages bytes sources
local source  = ARGV[3]                      -- str: source of the chat, encoded
local keep    = tonumber(ARGV[4])            -- int: messages to keep, at least 1
local now_arg = ARGV[5]                      -- time: test override, microseconds
--@include lock: refuse_change
--@include chat: open_chat, close_chat, drop_oldest

local list_key = scope .. ':chat:' .. source .. ':q'
if redis.call('EXISTS', list_key) == 0 then return refuse_change(scope, caller) or {'ok', 0, 0, 0} end
-- A session with too many chats may shorten one that it does not list.
limits.sources = math.huge
local chat, answer = open_chat(scope, 'truncate', source, caller, limits, now_arg)
if not chat then return answer end
chat.max_messages = math.min(chat.max_messages, keep)
local dropped = drop_oldest(scope, chat, 0, 0)
if dropped > 0 then
  chat.rev = chat.rev + 1
end
return close_chat(scope, chat, {dropped, chat.count})
