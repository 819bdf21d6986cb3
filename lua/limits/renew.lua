#!lua flags=allow-oom
-- Extends the leases of calls of a provider that still run. A lease that has expired comes back if its call has not ended and
-- its place is free.
-- returns: the number of these calls that have a lease then
-- repeat: extends them again
local pool     = KEYS[1]                   -- key: root of the pool's slot; of a shared provider, of the scope of its limit
local name     = ARGV[1]                   -- str: limit
local rows     = cmsgpack.unpack(ARGV[2])  -- rows: call at_once
local lease_ms = tonumber(ARGV[3])         -- int: how long the leases last from now
local now_arg  = ARGV[4]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include blocked: await_trial
--@include provider: call_kept_ms

local now = now_us(now_arg)
local leases_key, calls_key = pool .. ':provider:leases:' .. name, pool .. ':provider:calls:' .. name
local trial = redis.call('HGET', pool .. ':blocked:' .. name, 'trial')
local trying = trial and string.match(trial, '^%d+ (.+)$')
local running = redis.call('ZCOUNT', leases_key, '(' .. integer(now), '+inf')
local kept = {}
for i = 1, math.min(#rows, 500) do
  local call, at_once = rows[i].call, rows[i].at_once
  local lease_end = redis.call('ZSCORE', leases_key, call)
  if lease_end and tonumber(lease_end) > now then
    kept[#kept + 1] = call
  elseif redis.call('HEXISTS', calls_key, call) == 1 and (at_once == 0 or running < at_once) then
    kept[#kept + 1], running = call, running + 1
  end
end
for i = 1, #kept do
  redis.call('ZADD', leases_key, integer(now + lease_ms * 1000), kept[i])
  if kept[i] == trying then
    local now_ms = math.floor(now / 1000)
    await_trial(pool, name, now_ms, kept[i], now_ms + lease_ms)
  end
end
if #kept > 0 then
  redis.call('PEXPIRE', leases_key, integer(lease_ms + call_kept_ms))
  redis.call('PEXPIRE', calls_key, integer(lease_ms + call_kept_ms))
end
return #kept
