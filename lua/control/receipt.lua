#!lua flags=allow-oom
-- Stores receipts: which reader received, executed or refused a command, and when. `received` and `refused` never
-- replace an earlier receipt of the same sender, and `progress` of an ended job is dropped. A refusal of a command that
-- was never accepted is dropped too, so that forged commands fill no memory. A signed receipt has its signature in a field
-- beside it, which programs that know of none ignore; a signed `received` replaces a receipt without one, a forgery.
-- returns: number of stored receipts
-- repeat: stores the later time
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: command sender word detail signature
local now_arg = ARGV[2]                   -- time: test override, microseconds
--@include time: day_s, now_us, integer
--@include key: has_type

local now_text = integer(math.floor(now_us(now_arg) / 1000))
local types, noted = {}, 0

local function is_news(receipts_key, command, sender, word, signature)
  -- A supervisor that froze may report progress of a job that has ended.
  if word == 'progress' then return redis.call('HEXISTS', pool .. ':desired', 'do:' .. command) == 1 end
  if word ~= 'received' and word ~= 'refused' then return true end
  local known = redis.call('HEXISTS', receipts_key, sender) == 1
  if known and (signature == '' or redis.call('HEXISTS', receipts_key, '~' .. sender) == 1) then return false end
  return word == 'received' or redis.call('EXISTS', pool .. ':nonce:' .. command) == 1
end

for i = 1, #rows do
  local command, sender, word, detail = rows[i].command, rows[i].sender, rows[i].word, rows[i].detail
  local signature = rows[i].signature
  local receipts_key = pool .. ':receipts:' .. command
  -- A key of another type must not keep out the receipts of other commands.
  if has_type(types, receipts_key, 'hash') and is_news(receipts_key, command, sender, word, signature) then
    redis.call('HSET', receipts_key, sender, now_text .. ' ' .. word .. ' ' .. detail)
    if signature ~= '' then redis.call('HSET', receipts_key, '~' .. sender, signature) end
    redis.call('EXPIRE', receipts_key, 7 * day_s)
    noted = noted + 1
  end
end
return noted
