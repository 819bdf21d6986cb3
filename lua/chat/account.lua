#!lua
-- Stores the sizes of chats of a tenant, and takes out chats that have ended.
-- returns: bytes of all chats, their messages, number of chats
-- repeat: stores the same again
local scope   = KEYS[1]                   -- key: root of the slot of the tenant's counts
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: chat bytes messages ends
local now_arg = ARGV[2]                   -- time: test override, microseconds
--@include time: now_us, integer

local sums_key, seen_key, sizes_key = scope .. ':chat', scope .. ':chat:seen', scope .. ':chat:sizes'
local now_ms = math.floor(now_us(now_arg) / 1000)
local sums = redis.call('HMGET', sums_key, 'bytes', 'messages')
local bytes, messages = tonumber(sums.bytes or 0), tonumber(sums.messages or 0)
local count = redis.call('ZCARD', seen_key)
if not sums.bytes or count ~= redis.call('HLEN', sizes_key) or (count == 0 and bytes + messages > 0) then
  -- A key was lost. Every chat is counted again at its next change.
  redis.call('UNLINK', sums_key, seen_key, sizes_key)
  bytes, messages = 0, 0
end
local ended = redis.call('ZRANGEBYSCORE', seen_key, '-inf', integer(now_ms), 'LIMIT', 0, 500)
for i = 1, #rows do
  if rows[i].ends <= now_ms then ended[#ended + 1] = rows[i].chat end
end
for i = 1, #ended do
  local size = redis.call('HGET', sizes_key, ended[i])
  if size then
    local old_bytes, old_messages = string.match(size, '^(%d+) (%d+)$')
    bytes, messages = bytes - tonumber(old_bytes), messages - tonumber(old_messages)
    redis.call('HDEL', sizes_key, ended[i])
    redis.call('ZREM', seen_key, ended[i])
  end
end
for i = 1, #rows do
  local row = rows[i]
  if row.ends > now_ms then
    local size = redis.call('HGET', sizes_key, row.chat)
    local old_bytes, old_messages = string.match(size or '0 0', '^(%d+) (%d+)$')
    bytes, messages = bytes + row.bytes - tonumber(old_bytes), messages + row.messages - tonumber(old_messages)
    redis.call('HSET', sizes_key, row.chat, integer(row.bytes) .. ' ' .. integer(row.messages))
    redis.call('ZADD', seen_key, integer(row.ends), row.chat)
  end
end
if #rows > 0 or #ended > 0 then
  redis.call('HSET', sums_key, 'bytes', integer(bytes), 'messages', integer(messages))
  for _, key in ipairs({sums_key, seen_key, sizes_key}) do
    redis.call('PEXPIRE', key, 2592000000)
  end
end
return {bytes, messages, redis.call('ZCARD', seen_key)}
