#!lua
-- Changes fields of a chat: all rows or none.
-- returns: ok revision, 1 or 0 (not newer), version | duplicate, the same | fenced value | occupied value ms |
--          full what | again
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms summary_ms window_ms ops messages bytes sources
local source  = ARGV[3]                      -- str: source of the chat, encoded
local rows    = cmsgpack.unpack(ARGV[4])     -- rows: field keep value
local version = tonumber(ARGV[5])            -- int: version to store, higher than the stored one; 0: the next one
local most    = tonumber(ARGV[6])            -- int: fields that a chat may have
local now_arg = ARGV[7]                      -- time: test override, microseconds
--@include time: integer
--@include chat: open_chat, close_chat

local meta_key = scope .. ':chat:' .. source .. ':meta'
local chat, answer = open_chat(scope, 'meta', source, caller, limits, now_arg)
if not chat then return answer end
if version > 0 and version <= chat.version then return close_chat(scope, chat, {0, chat.version}) end
local fields, written, removed, new, grown = {}, {}, {}, 0, 0
for i = 1, #rows do fields[i] = 'u:' .. rows[i].field end
local stored = redis.call('HMGET', meta_key, unpack(fields))
for i = 1, #rows do
  if stored[i] then grown = grown - #fields[i] - #stored[i] end
  if rows[i].keep == 1 then
    grown = grown + #fields[i] + #rows[i].value
    if not stored[i] then new = new + 1 end
    written[#written + 1] = fields[i]
    written[#written + 1] = rows[i].value
  else
    removed[#removed + 1] = fields[i]
    if stored[i] then new = new - 1 end
  end
end
local names, own = redis.call('HKEYS', meta_key), 0
for i = 1, #names do
  if string.sub(names[i], 1, 2) == 'u:' then own = own + 1 end
end
if new > 0 and own + new > most then return {'full', 'fields'} end
chat.version = version > 0 and version or chat.version + 1
chat.rev = chat.rev + 1
if #removed > 0 then redis.call('HDEL', meta_key, unpack(removed)) end
redis.call('HSET', meta_key, 'version', integer(chat.version), unpack(written))
redis.call('HINCRBY', meta_key, 'own', integer(grown))
return close_chat(scope, chat, {1, chat.version})
