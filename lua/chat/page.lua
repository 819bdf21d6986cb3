#!lua flags=no-writes
-- Reads messages of a chat that precede a number, oldest first.
-- returns: messages
-- repeat: reads again
local scope  = KEYS[1]            -- key: root of the session's slot
local source = ARGV[1]            -- str: source of the chat, encoded
local before = tonumber(ARGV[2])  -- int: number of the first known message
local limit  = tonumber(ARGV[3])  -- int: at most this many

local list_key = scope .. ':chat:' .. source .. ':q'
local oldest = redis.call('LINDEX', list_key, 0)
if not oldest then return {} end
local last = math.min(before - tonumber(string.match(oldest, '^%d+')), redis.call('LLEN', list_key)) - 1
if last < 0 then return {} end
return redis.call('LRANGE', list_key, math.max(0, last - limit + 1), last)
