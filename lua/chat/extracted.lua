#!lua
-- Notes up to which message a skill has extracted a chat. The number never falls here; `pop` lowers it. It stays before
-- messages at the end of the range that were appended or replaced after the caller has read them.
-- returns: ok revision (0: the chat has ended, nothing is noted), number | fenced value | occupied value ms
-- repeat: returns the same or a higher number
local scope  = KEYS[1]                      -- key: root of the session's slot
local caller = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local source = ARGV[2]                      -- str: source of the chat, encoded
local name   = ARGV[3]                      -- str: the skill, as AGENT/SKILL
local upto   = tonumber(ARGV[4])            -- int: number of the last message of the range
local rev    = tonumber(ARGV[5])            -- int: highest revision of its messages, as the caller has read them
--@include time: integer
--@include lock: refuse_change
--@include chat: split_entry

local meta_key, list_key = scope .. ':chat:' .. source .. ':meta', scope .. ':chat:' .. source .. ':q'
local refused = refuse_change(scope, caller)
if refused then return refused end
local field = 'x:' .. name
local meta = redis.call('HMGET', meta_key, 'rev', 'base', 'count', field)
if not meta.rev then return {'ok', 0, 0} end
local base, known = tonumber(meta.base), tonumber(meta.field or 0)
local number = math.min(upto, base + tonumber(meta.count))
local lowest = math.max(known, base, number - 500)
while number > lowest do
  local entry = redis.call('LINDEX', list_key, number - base - 1)
  if entry and tonumber((select(2, split_entry(entry)))) <= rev then break end
  number = number - 1
end
if number <= known then return {'ok', tonumber(meta.rev), known} end
redis.call('HSET', meta_key, field, integer(number))
return {'ok', tonumber(meta.rev), number}
