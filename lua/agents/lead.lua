#!lua flags=allow-oom
-- Acquires or renews the lease of the leading supervisor, and lists the caller among the supervisors that run.
-- returns: 1 (the caller leads) | 0 (another supervisor leads); the lowest format that the pool admits; the number of the
-- caller's last request that Redis knew (if it is below the one that the caller knows, Redis has lost writes), the number of
-- this request, the number of submits, ms
-- repeat: renews the lease
local pool     = KEYS[1]            -- key: root of the pool's slot
local id       = ARGV[1]            -- str: supervisor
local lease_ms = tonumber(ARGV[2])  -- int: duration of the lease; 0: the caller must not lead and is only listed
local format   = tonumber(ARGV[3])  -- int: format of the supervisor
local version  = ARGV[4]            -- str: version of the supervisor
local known    = tonumber(ARGV[5])  -- int: the highest floor of the pool that the supervisor has seen
local last     = tonumber(ARGV[6])  -- int: number of the last request that Redis has confirmed to the supervisor
local key      = ARGV[7]            -- str: name of the secret that the supervisor signs with, or empty
local now_arg  = ARGV[8]            -- time: test override, microseconds
--@include time: day_s, now_us, integer
--@include format: raise_floor
--@include key: has_type

local leader_key, format_key, supervisors_key = pool .. ':leader', pool .. ':leader:format', pool .. ':supervisors'
local now_ms = math.floor(now_us(now_arg) / 1000)
local holder = redis.call('GET', leader_key)
local shown = redis.call('HMGET', format_key, 'id', 'format', 'unknown', 'until_ms')
-- Redis may have lost the floor, or a program that did not know it may have stored a lower one since.
local stored = raise_floor(pool, known)
local floor = tonumber(stored)

-- Numbers the request. A supervisor that knows a higher number of its own has seen writes that Redis no longer has. Each one
-- has a number of its own to compare, because the requests of the others soon raise the shared one above what was lost. The
-- shared one decides for a supervisor that was removed from the list meanwhile.
local types, durability_key, totals_key = {}, pool .. ':durability', pool .. ':stats:TOTAL'
local requests_key = pool .. ':supervisors:requests'
local stored_last, request, submitted = 0, 0, 0
local counts = has_type(types, durability_key, 'hash') and has_type(types, totals_key, 'hash')
  and has_type(types, requests_key, 'hash')
if counts then
  local latest = tonumber(redis.call('HGET', durability_key, 'lease_requests') or 0) or 0
  -- Behind the number the name of the key, which `orc doctor` compares.
  stored_last = tonumber(string.match(redis.call('HGET', requests_key, id) or '', '^%d+') or latest)
  submitted = tonumber(redis.call('HGET', totals_key, 'submitted') or 0) or 0
  request = math.max(latest, last) + 1
  if last > stored_last then
    -- One supervisor reports a loss: the others now compare with a shared number that is above theirs.
    request = request + 10000
    redis.call('DEL', requests_key)
  end
  redis.call('HSET', durability_key, 'lease_requests', integer(request))
  redis.call('HSET', requests_key, id, key == '' and integer(request) or integer(request) .. ' ' .. key)
  redis.call('EXPIRE', requests_key, day_s)
end

-- Returns whether the holder of the lease is below the floor. Programs from format 3 on store their format with each
-- renewal, so a holder without one is older only if the lease outlives the time that was left when a caller noted that.
local function is_below_floor()
  if shown.id == holder then return tonumber(shown.format) < floor end
  if floor < 3 then return false end
  if shown.unknown == holder then return now_ms > tonumber(shown.until_ms) end
  redis.call('HSET', format_key, 'unknown', holder, 'until_ms', integer(now_ms + redis.call('PTTL', leader_key)))
  redis.call('EXPIRE', format_key, day_s)
  return false
end

-- The score is the end of the entry, because supervisors may have leases of different durations.
redis.call('ZREMRANGEBYSCORE', supervisors_key, '-inf', integer(now_ms))
local end_ms = now_ms + math.max(3 * lease_ms, 60000)
redis.call('ZADD', supervisors_key, integer(end_ms), id .. ' ' .. integer(format) .. ' ' .. version)
redis.call('EXPIRE', supervisors_key, day_s)
if counts and redis.call('HLEN', requests_key) > redis.call('ZCARD', supervisors_key) then
  local listed, gone = {}, {}
  for _, entry in ipairs(redis.call('ZRANGE', supervisors_key, 0, -1)) do listed[string.match(entry, '^%S+')] = true end
  for _, supervisor in ipairs(redis.call('HKEYS', requests_key)) do
    if not listed[supervisor] and #gone < 1000 then gone[#gone + 1] = supervisor end
  end
  if #gone > 0 then redis.call('HDEL', requests_key, unpack(gone)) end
end
if format < floor or lease_ms == 0 then return {0, stored, stored_last, request, submitted, now_ms} end
if holder and holder ~= id and not is_below_floor() then return {0, stored, stored_last, request, submitted, now_ms} end
redis.call('SET', leader_key, id, 'PX', lease_ms)
redis.call('HSET', format_key, 'id', id, 'format', integer(format))
redis.call('HDEL', format_key, 'unknown', 'until_ms')
redis.call('EXPIRE', format_key, day_s)
return {1, stored, stored_last, request, submitted, now_ms}
