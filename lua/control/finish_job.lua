#!lua flags=allow-oom
-- Ends a job and stores its receipt.
-- returns: 1 | 0 (the job had ended)
-- repeat: returns 0 and changes nothing
local pool      = KEYS[1]  -- key: root of the pool's slot
local id        = ARGV[1]  -- str: command
local sender    = ARGV[2]  -- str: supervisor that ran the job
local status    = ARGV[3]  -- str: done, failed or refused
local detail    = ARGV[4]  -- str: details for people
local signature = ARGV[5]  -- str: of the receipt, or empty
local now_arg   = ARGV[6]  -- time: test override, microseconds
--@include key: has_type
--@include time: day_s, now_us, integer

local desired_key, receipts_key = pool .. ':desired', pool .. ':receipts:' .. id
if redis.call('HEXISTS', desired_key, 'do:' .. id) == 0 then return 0 end
redis.call('HSET', receipts_key, sender, integer(math.floor(now_us(now_arg) / 1000)) .. ' ' .. status .. ' ' .. detail)
if signature ~= '' then redis.call('HSET', receipts_key, '~' .. sender, signature) end
redis.call('EXPIRE', receipts_key, 7 * day_s)
redis.call('HDEL', desired_key, 'do:' .. id, 'verified:do:' .. id)
-- Keep the first tasks for a day, so that a page can show what became of each.
local selection_key = pool .. ':selection:' .. id
if has_type({}, selection_key, 'list') then
  redis.call('LTRIM', selection_key, 0, 999)
  redis.call('EXPIRE', selection_key, day_s)
end
return 1
