#!lua flags=no-writes
-- Reads the session's directory.
-- returns: per present agent: name, ms until its lease runs out, its entry
-- repeat: reads again
local scope   = KEYS[1]            -- key: root of the session's slot
local limit   = tonumber(ARGV[1])  -- int: at most this many
local now_arg = ARGV[2]            -- time: test override, microseconds
--@include time: now_us, integer

local now_ms = math.floor(now_us(now_arg) / 1000)
local found = redis.call(
  'ZRANGE', scope .. ':dir', '(' .. integer(now_ms), '+inf', 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
local answers = {}
for i = 1, #found, 2 do
  answers[#answers + 1] = found[i]
  answers[#answers + 1] = tonumber(found[i + 1]) - now_ms
  answers[#answers + 1] = redis.call('HGET', scope .. ':dir:info', found[i]) or 'null'
end
return answers
