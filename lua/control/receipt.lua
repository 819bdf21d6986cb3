#!lua flags=allow-oom
-- Note who has heard of commands, obeyed or refused them, and when. That somebody has heard of one, or refuses it, never
-- replaces what he said of it before: a command that is given twice spoils no receipt. Of what was never accepted no
-- refusal is noted: whoever floods the stream with forgeries fills no memory.
-- answers: how many were noted
-- repeat: notes the later time
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: command sender word detail
local now_arg = ARGV[2]                   -- time: test override, microseconds
--@include now_us
--@include whole

local now_text = whole(math.floor(now_us(now_arg) / 1000))
local noted = 0

local function is_news(receipts_key, command, sender, word)
  if word ~= 'heard' and word ~= 'refused' then return true end
  if redis.call('HEXISTS', receipts_key, sender) == 1 then return false end
  return word == 'heard' or redis.call('EXISTS', pool .. ':nonce:' .. command) == 1
end

for i = 1, #rows do
  local command, sender, word, detail = rows[i][1], rows[i][2], rows[i][3], rows[i][4]
  local receipts_key = pool .. ':receipts:' .. command
  if is_news(receipts_key, command, sender, word) then
    redis.call('HSET', receipts_key, sender, now_text .. ' ' .. word .. ' ' .. detail)
    redis.call('EXPIRE', receipts_key, 604800)
    noted = noted + 1
  end
end
return noted
