#!lua flags=allow-oom
-- Note who has heard of commands, obeyed or refused them, and when.
-- answers: how many were noted
-- repeat: notes the later time
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: command sender word detail
local now_arg = ARGV[2]                   -- time: test override, microseconds
--@include now_us
--@include whole

local now_text = whole(math.floor(now_us(now_arg) / 1000))
for i = 1, #rows do
  local receipts_key = pool .. ':receipts:' .. rows[i][1]
  redis.call('HSET', receipts_key, rows[i][2], now_text .. ' ' .. rows[i][3] .. ' ' .. rows[i][4])
  redis.call('EXPIRE', receipts_key, 604800)
end
return #rows
