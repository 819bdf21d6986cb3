#!lua flags=allow-oom
-- Removes a worker that has ended from the registry, with the active command for it.
-- status: ok
-- repeat: returns ok
local pool    = KEYS[1]  -- key: root of the pool's slot
local worker  = ARGV[1]  -- str: worker
local now_arg = ARGV[2]  -- time: test override, microseconds
--@include time: now_us
--@include key: has_type
--@include registry: forget_worker

forget_worker(pool, worker, math.floor(now_us(now_arg) / 1000))
redis.call('UNLINK', pool .. ':silent:' .. worker)
if has_type({}, pool .. ':desired', 'hash') then
  redis.call('HDEL', pool .. ':desired', 'drain:worker:' .. worker, 'verified:drain:worker:' .. worker)
end
return {'ok'}
