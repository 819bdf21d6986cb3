#!lua
-- Notes places that may hold text about a person. Callers note a place before they write the text.
-- returns: ok | erased (the person was erased a moment ago; the text must not be written)
-- repeat: notes the same
local scope   = KEYS[1]                    -- key: root of the subject's slot
local rows    = cmsgpack.unpack(ARGV[1])   -- rows: place keep_ms
local now_arg = ARGV[2]                    -- time: test override, microseconds
--@include time: now_us, integer
--@include erased: is_erased

local places_key = scope .. ':places'
local now_ms = math.floor(now_us(now_arg) / 1000)
if is_erased(scope, 'all', now_ms) then return 'erased' end
redis.call('ZREMRANGEBYSCORE', places_key, '-inf', integer(now_ms))
local longest_ms = 0
for i = 1, #rows do
  local row = rows[i]
  redis.call('ZADD', places_key, 'GT', integer(now_ms + row.keep_ms), row.place)
  longest_ms = math.max(longest_ms, row.keep_ms)
end
redis.call('PEXPIRE', places_key, integer(longest_ms), 'NX')
redis.call('PEXPIRE', places_key, integer(longest_ms), 'GT')
return 'ok'
