#!lua flags=allow-oom
-- Checks one chat, a part of its messages at a time; with `repair` makes its counts and ids again.
-- codes: lost-counts (a chat has messages and no counts) | chat-gap (it lacks messages that it has counted)
--        | unlisted-message (its ids lack messages) | unlisted-chat (its session does not list it)
-- returns: index of the next message to check (0: all are checked), then per finding: row code place repaired (1 or 0)
-- repeat: finds nothing that it has repaired
local scope   = KEYS[1]            -- key: root of the session's slot
local source  = ARGV[1]            -- str: source of the chat, encoded
local first   = tonumber(ARGV[2])  -- int: index of the first message to check
local repair  = ARGV[3]            -- str: 1 = repair what is found
local now_arg = ARGV[4]            -- time: test override, microseconds
--@include time: now_us, integer
--@include key: has_type
--@include chat: chat_read_bytes, split_entry

local meta_key, list_key = scope .. ':chat:' .. source .. ':meta', scope .. ':chat:' .. source .. ':q'
local ids_key, chats_key = scope .. ':chat:' .. source .. ':id', scope .. ':chats'
local sum_key = scope .. ':chat:' .. source .. ':sum'
local now = now_us(now_arg)
local types, answers = {}, {0}
local sound = has_type(types, meta_key, 'hash') and has_type(types, list_key, 'list') and has_type(types, ids_key, 'hash')
  and has_type(types, chats_key, 'hash')
if not sound then return answers end

local function note(code, place, repaired)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4] = 1, code, place, repaired and 1 or 0
end

local may_repair = repair == '1'
local length = redis.call('LLEN', list_key)
local meta = redis.call('HMGET', meta_key, 'rev', 'count')
local dies = math.max(redis.call('PEXPIRETIME', list_key), redis.call('PEXPIRETIME', meta_key))
if first == 0 then
  if length > 0 and not meta.rev then
    if may_repair then
      local ms = integer(math.floor(now / 1000))
      -- Revisions begin at the time in us, so that they rise over the loss. The next change counts the bytes again.
      redis.call('HSET', meta_key, 'rev', integer(now), 'edited', integer(now),
        'base', integer(tonumber((split_entry(redis.call('LINDEX', list_key, 0)))) - 1), 'count', length,
        'bytes', 0, 'tokens', 0, 'trimmed', 0, 'born', ms, 'fresh', ms, 'dies', integer(dies), 'counted', 0)
      redis.call('PEXPIREAT', meta_key, integer(dies))
      redis.call('PEXPIREAT', ids_key, integer(dies), 'NX')
    end
    note('lost-counts', source, may_repair)
  elseif meta.rev and tonumber(meta.count or 0) ~= length then
    note('chat-gap', source, false)
  end
  if dies > 0 and redis.call('HEXISTS', chats_key, source) == 0 then
    if may_repair then
      -- A session lists a chat as long as its summary lives.
      local last = math.max(dies, redis.call('PEXPIRETIME', sum_key))
      redis.call('HSET', chats_key, source, integer(last))
      redis.call('PEXPIREAT', chats_key, integer(last), 'NX')
      redis.call('PEXPIREAT', chats_key, integer(last), 'GT')
    end
    note('unlisted-chat', source, may_repair)
  end
end

local missing, at, read = {}, first, 0
while at < length and at < first + 500 and read < chat_read_bytes do
  local block, ids, numbers = redis.call('LRANGE', list_key, at, at + 9), {}, {}
  for i = 1, #block do
    local number, _, _, _, _, id = split_entry(block[i])
    ids[i], numbers[i], read = id, number, read + #block[i]
  end
  local stored = redis.call('HMGET', ids_key, unpack(ids))
  for i = 1, #ids do
    if stored[i] ~= numbers[i] then
      missing[#missing + 1] = ids[i]
      missing[#missing + 1] = numbers[i]
      note('unlisted-message', source .. ' ' .. numbers[i], may_repair)
    end
  end
  at = at + #block
end
if may_repair and #missing > 0 then
  redis.call('HSET', ids_key, unpack(missing))
  if dies > 0 then redis.call('PEXPIREAT', ids_key, integer(dies), 'NX') end
end
answers[1] = at < length and at or 0
return answers
