#!lua flags=allow-oom
-- Removes the summary of a chat and its messages about a person, and refuses new ones for a time. Looks at up to 500
-- messages or 1 MiB per call. An erased message keeps its place, with version 0 and without text, id, turn and person, so
-- that the numbers of the others stay.
-- returns: ok revision, number of the last message that was read, number of the last message, erased messages,
--          summaries | duplicate, the same | fenced value | occupied value ms | full what | again
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms summary_ms window_ms ops messages bytes sources
local source  = ARGV[3]                      -- str: source of the chat, encoded
local subject = ARGV[4]                      -- str: the person, encoded
local for_ms  = tonumber(ARGV[5])            -- int: how long new messages about the person are refused
local after   = tonumber(ARGV[6])            -- int: number of the last message that an earlier call has read
local now_arg = ARGV[7]                      -- time: test override, microseconds
--@include time: now_us, integer
--@include lock: refuse_change
--@include erased: mark_erased
--@include chat: open_chat, close_chat, split_entry, chat_read_bytes

local meta_key, list_key = scope .. ':chat:' .. source .. ':meta', scope .. ':chat:' .. source .. ':q'
local ids_key, sum_key = scope .. ':chat:' .. source .. ':id', scope .. ':chat:' .. source .. ':sum'
local chat, answer
if redis.call('EXISTS', meta_key, list_key) > 0 then
  chat, answer = open_chat(scope, 'erase', source, caller, limits, now_arg)
else
  answer = refuse_change(scope, caller)
end
if answer then return answer end
mark_erased(scope, redis.sha1hex(subject), math.floor(now_us(now_arg) / 1000), for_ms)
local summaries = redis.call('DEL', sum_key)
if not chat then return {'ok', 0, 0, 0, 0, summaries} end

local rev, erased, read, seen = chat.rev, 0, 0, math.max(after, chat.base)
local last = chat.base + chat.count
local limit = math.min(last, seen + 500)
local mean = math.max(1, chat.bytes / math.max(1, chat.count))
local step = math.max(1, math.min(50, math.floor(chat_read_bytes / 4 / mean)))
while seen < limit and read < chat_read_bytes do
  local at = seen - chat.base
  local block = redis.call('LRANGE', list_key, at, at + math.min(step, limit - seen) - 1)
  for i = 1, #block do
    local entry = block[i]
    local number, _, _, tokens, ms, id = split_entry(entry)
    if string.match(entry, '^[^,]+,[^,]+,[^,]+,[^,]+,[^,]+,[^,]+,[^,]+,"([^,]+)",') == subject then
      chat.rev = chat.rev + 1
      -- No id of a caller is encoded like this.
      local empty_id = '!' .. number
      local empty = number .. ',' .. integer(chat.rev) .. ',0,null,' .. ms .. ',"' .. empty_id .. '",null,null,null,null,null'
      redis.call('LSET', list_key, at + i - 1, empty)
      -- In this order the hash is never empty, and keeps its lifetime.
      redis.call('HSET', ids_key, empty_id, number)
      redis.call('HDEL', ids_key, id)
      chat.bytes = math.max(0, chat.bytes + #empty - #entry)
      chat.tokens = math.max(0, chat.tokens - (tonumber(tokens) or 0))
      erased = erased + 1
    end
    read = read + #entry
  end
  seen = seen + step
end
if summaries > 0 then chat.rev = chat.rev + 1 end
if chat.rev > rev then chat.edited = chat.rev end
-- No summary of this revision or before is restored from a second storage.
redis.call('HSET', meta_key, 'erased', integer(chat.rev > rev and chat.rev or chat.known_rev))
redis.call('HDEL', meta_key, 'summed')
return close_chat(scope, chat, {math.min(seen, limit), last, erased, summaries})
