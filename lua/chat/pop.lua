#!lua flags=allow-oom
-- Removes the last message of a chat, if it is the expected one.
-- returns: ok revision, number | duplicate, the same | fenced value | occupied value ms |
--          full what | again | changed
-- repeat: returns duplicate and the first call's result
local scope    = KEYS[1]                      -- key: root of the session's slot
local caller   = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits   = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms summary_ms window_ms ops messages bytes sources
local source   = ARGV[3]                      -- str: source of the chat, encoded
local number   = tonumber(ARGV[4])            -- int: number of the message
local revision = tonumber(ARGV[5])            -- int: its revision
local now_arg  = ARGV[6]                      -- time: test override, microseconds
--@include time: integer
--@include chat: open_chat, close_chat, split_entry, note_removal

local meta_key, list_key = scope .. ':chat:' .. source .. ':meta', scope .. ':chat:' .. source .. ':q'
local ids_key = scope .. ':chat:' .. source .. ':id'
local chat, answer = open_chat(scope, 'pop', source, caller, limits, now_arg)
if not chat then return answer end
local last = redis.call('LINDEX', list_key, -1)
if not last then return {'changed'} end
local stored, stored_revision, _, tokens, _, id = split_entry(last)
if tonumber(stored) ~= number or tonumber(stored_revision) ~= revision then return {'changed'} end
redis.call('RPOP', list_key)
redis.call('HDEL', ids_key, id)
chat.rev = chat.rev + 1
chat.edited, chat.count = chat.rev, chat.count - 1
chat.bytes, chat.tokens = math.max(0, chat.bytes - #last), math.max(0, chat.tokens - (tonumber(tokens) or 0))
note_removal(scope, chat, limits.summary_ms, number)
-- The next message gets this number, and was not extracted.
local fields = redis.call('HKEYS', meta_key)
for i = 1, #fields do
  if string.sub(fields[i], 1, 2) == 'x:' and tonumber(redis.call('HGET', meta_key, fields[i])) >= number then
    redis.call('HSET', meta_key, fields[i], integer(number - 1))
  end
end
return close_chat(scope, chat, {number})
