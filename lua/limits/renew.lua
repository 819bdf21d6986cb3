#!lua flags=allow-oom
-- Extends the leases of calls of a provider that still run. A lease that has expired stays so.
-- returns: the number of leases that were extended
-- repeat: extends them again
local pool     = KEYS[1]                   -- key: root of the pool's slot
local name     = ARGV[1]                   -- str: limit
local rows     = cmsgpack.unpack(ARGV[2])  -- rows: call
local lease_ms = tonumber(ARGV[3])         -- int: how long the leases last from now
local now_arg  = ARGV[4]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include blocked: await_trial

local now = now_us(now_arg)
local leases_key = pool .. ':provider:leases:' .. name
local trial = redis.call('HGET', pool .. ':blocked:' .. name, 'trial')
local trying = trial and string.match(trial, '^%d+ (.+)$')
local extended = 0
for i = 1, math.min(#rows, 500) do
  local call = rows[i].call
  local lease_end = redis.call('ZSCORE', leases_key, call)
  if lease_end and tonumber(lease_end) > now then
    redis.call('ZADD', leases_key, integer(now + lease_ms * 1000), call)
    if call == trying then
      local now_ms = math.floor(now / 1000)
      await_trial(pool, name, now_ms, call, now_ms + lease_ms)
    end
    extended = extended + 1
  end
end
if extended > 0 then
  redis.call('PEXPIRE', leases_key, integer(lease_ms + 60000))
  redis.call('PEXPIRE', pool .. ':provider:calls:' .. name, integer(lease_ms + 60000))
end
return extended
