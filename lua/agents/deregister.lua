#!lua flags=allow-oom
-- Removes a worker that has ended from the registry, and the active command for it if the user of the worker may change
-- commands; supervisors remove others.
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
local desired_key, slot = pool .. ':desired', 'drain:worker:' .. worker
if has_type({}, desired_key, 'hash') and redis.acl_check_cmd('HDEL', desired_key, slot) then
  redis.call('HDEL', desired_key, slot, 'verified:' .. slot)
end
return {'ok'}
