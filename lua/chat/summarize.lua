#!lua
-- Stores the summary of the oldest messages of a chat, if its version is higher than the stored one.
-- returns: ok revision, 1 or 0 (not newer), version | duplicate, the same | fenced value | occupied value ms |
--          full what | again | beyond number of the last message
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms summary_ms window_ms ops messages bytes sources
local source  = ARGV[3]                      -- str: source of the chat, encoded
local text    = ARGV[4]                      -- str: the summary
local upto    = tonumber(ARGV[5])            -- int: number of the last message that it covers
local version = tonumber(ARGV[6])            -- int: its version
local now_arg = ARGV[7]                      -- time: test override, microseconds
--@include time: integer
--@include chat: open_chat, close_chat

local chats_key, sum_key = scope .. ':chats', scope .. ':chat:' .. source .. ':sum'
local chat, answer = open_chat(scope, 'summarize', source, caller, limits, now_arg)
if not chat then return answer end
local present = tonumber(redis.call('HGET', sum_key, 'version') or 0)
local last = chat.base + chat.count
if upto > last and last > 0 then return {'beyond', last} end
if version <= present then return close_chat(scope, chat, {0, present}) end
chat.rev = chat.rev + 1
-- The summary of a chat that has ended: numbers go on behind it.
if last == 0 then chat.base, chat.trimmed = upto, upto end
redis.call('HSET', sum_key, 'text', text, 'upto', integer(upto), 'version', integer(version))
local dies = integer(chat.now_ms + limits.summary_ms)
redis.call('PEXPIREAT', sum_key, dies)
-- A reader that finds no summary beside this knows that it was lost.
redis.call('HSET', scope .. ':chat:' .. source .. ':meta', 'summed', integer(version))
local answered = close_chat(scope, chat, {1, version})
-- The session lists the chat as long as its summary lives.
local listed = tonumber(redis.call('HGET', chats_key, source) or 0)
if tonumber(dies) > listed then redis.call('HSET', chats_key, source, dies) end
redis.call('PEXPIREAT', chats_key, dies, 'NX')
redis.call('PEXPIREAT', chats_key, dies, 'GT')
return answered
