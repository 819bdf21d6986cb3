#!lua flags=allow-oom
-- Removes a worker from the registry.
-- status: ok
-- repeat: returns ok
local pool   = KEYS[1]  -- key: root of the pool's slot
local worker = ARGV[1]  -- str: worker
--@include registry: forget_worker

forget_worker(pool, worker)
return {'ok'}
