#!lua flags=no-writes
-- Reads what of a chat is new to a reader.
-- returns: same, ms until the end of the chat, ms of its birth and of its end | tail or all, then the fields of the chat, their values, length of the list, messages, summary text
--          upto version, ms until the end of the chat
-- repeat: reads again
local scope  = KEYS[1]            -- key: root of the session's slot
local source = ARGV[1]            -- str: source of the chat, encoded
local rev    = tonumber(ARGV[2])  -- int: revision that the reader knows
local seq    = tonumber(ARGV[3])  -- int: number of the last message that it has
local last   = tonumber(ARGV[4])  -- int: at most this many messages

local sum_key, meta_key = scope .. ':chat:' .. source .. ':sum', scope .. ':chat:' .. source .. ':meta'
local list_key = scope .. ':chat:' .. source .. ':q'
local meta = redis.call('HMGET', meta_key, 'rev', 'edited', 'base', 'count', 'born', 'dies', 'summed')
local length = redis.call('LLEN', list_key)
local word, first = 'all', math.max(0, length - last)
-- Only a whole read tells that the summary was lost.
local summed = not meta.summed or redis.call('EXISTS', sum_key) == 1
if meta.rev and length == tonumber(meta.count) and summed then
  if tonumber(meta.rev) == rev then return {'same', redis.call('PTTL', meta_key), meta.born, meta.dies} end
  local from = seq - tonumber(meta.base)
  if rev >= tonumber(meta.edited) and rev < tonumber(meta.rev) and from >= first and from <= length then
    -- After a failover the message with the last number that the reader has may be another one.
    local shown = from > 0 and redis.call('LINDEX', list_key, from - 1)
    if not shown or tonumber(string.match(shown, '^%d+,(%d+)')) <= rev then word, first = 'tail', from end
  end
end
return {
  word, redis.call('HKEYS', meta_key), redis.call('HVALS', meta_key), length,
  redis.call('LRANGE', list_key, first, -1), redis.call('HMGET', sum_key, 'text', 'upto', 'version'),
  redis.call('PTTL', meta_key),
}
