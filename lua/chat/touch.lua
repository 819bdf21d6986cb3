#!lua flags=allow-oom
-- Extends the lifetime of the messages of a chat.
-- returns: ms of their end; 0: nothing is stored
-- repeat: extends it again
local scope   = KEYS[1]            -- key: root of the session's slot
local source  = ARGV[1]            -- str: source of the chat, encoded
local ttl_ms  = tonumber(ARGV[2])  -- int: lifetime after a use
local life_ms = tonumber(ARGV[3])  -- int: lifetime after the first change
local now_arg = ARGV[4]            -- time: test override, microseconds
--@include time: now_us, integer
--@include chat: extend_chat

local meta_key = scope .. ':chat:' .. source .. ':meta'
local meta = redis.call('HMGET', meta_key, 'born', 'dies')
if not meta.born then return 0 end
local now_ms = math.floor(now_us(now_arg) / 1000)
local dies = math.min(now_ms + ttl_ms * 9 / 8, tonumber(meta.born) + life_ms)
if dies <= tonumber(meta.dies) then return tonumber(meta.dies) end
redis.call('HSET', meta_key, 'fresh', integer(now_ms), 'dies', integer(dies))
extend_chat(scope, source, dies)
return dies
