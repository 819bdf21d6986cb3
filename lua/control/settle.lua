#!lua flags=allow-oom
-- End a job: it is not to be done any more, and its receipt says how it ended.
-- answers: 1 it was to be done | 0 it was not, as when it was settled before
-- repeat: 0, and nothing changes
local pool    = KEYS[1]  -- key: root of the pool's slot
local id      = ARGV[1]  -- str: command
local sender  = ARGV[2]  -- str: who did it
local word    = ARGV[3]  -- str: done, failed or refused
local detail  = ARGV[4]  -- str: in words
local now_arg = ARGV[5]  -- time: test override, microseconds
--@include time: now_us, integer

local desired_key, receipts_key = pool .. ':desired', pool .. ':receipts:' .. id
if redis.call('HEXISTS', desired_key, 'do:' .. id) == 0 then return 0 end
redis.call('HSET', receipts_key, sender, integer(math.floor(now_us(now_arg) / 1000)) .. ' ' .. word .. ' ' .. detail)
redis.call('EXPIRE', receipts_key, 604800)
redis.call('HDEL', desired_key, 'do:' .. id, 'verified:do:' .. id)
redis.call('UNLINK', pool .. ':selection:' .. id)
return 1
