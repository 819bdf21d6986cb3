#!lua flags=allow-oom
-- Checks that chats which a session lists are there; with `repair` takes those that are gone off the list.
-- codes: lost-chat (a chat is gone before its end)
-- returns: per finding: row code place repaired (1 or 0)
-- repeat: finds nothing that it has repaired
local scope   = KEYS[1]                   -- key: root of the session's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: source
local repair  = ARGV[2]                   -- str: 1 = repair what is found
local now_arg = ARGV[3]                   -- time: test override, microseconds
--@include time: now_us
--@include key: has_type

local now_ms = math.floor(now_us(now_arg) / 1000)
local chats_key = scope .. ':chats'
local types, answers = {}, {}
if not has_type(types, chats_key, 'hash') then return answers end
for i = 1, #rows do
  local source = rows[i].source
  local meta_key, list_key = scope .. ':chat:' .. source .. ':meta', scope .. ':chat:' .. source .. ':q'
  local sum_key = scope .. ':chat:' .. source .. ':sum'
  local dies = tonumber(redis.call('HGET', chats_key, source) or 0)
  -- A second of grace: the keys may end while this runs.
  if dies > now_ms + 1000 and redis.call('EXISTS', meta_key, list_key, sum_key) == 0 then
    if repair == '1' then redis.call('HDEL', chats_key, source) end
    local n = #answers
    answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4] = i, 'lost-chat', source, repair == '1' and 1 or 0
  end
end
return answers
