#!lua flags=allow-oom
-- Acquires or renews the lease of the leading supervisor, and lists the caller among the supervisors that run.
-- returns: 1 (the caller leads) | 0 (another supervisor leads); the lowest format that the pool admits; for a supervisor
-- that knows a higher number of requests than Redis, Redis has lost writes: the number of requests that Redis knew, the
-- number of this one, the number of submits, ms
-- repeat: renews the lease
local pool     = KEYS[1]            -- key: root of the pool's slot
local id       = ARGV[1]            -- str: supervisor
local lease_ms = tonumber(ARGV[2])  -- int: duration of the lease
local format   = tonumber(ARGV[3])  -- int: format of the supervisor
local version  = ARGV[4]            -- str: version of the supervisor
local known    = tonumber(ARGV[5])  -- int: the highest floor of the pool that the supervisor has seen
local beats    = tonumber(ARGV[6])  -- int: the highest number of a request that the supervisor has seen
local now_arg  = ARGV[7]            -- time: test override, microseconds
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

-- Counts the request. A supervisor that knows a higher number has seen writes that Redis no longer has. The next number is
-- above both, so that one supervisor notices a loss.
local types, durability_key, totals_key = {}, pool .. ':durability', pool .. ':stats:TOTAL'
local stored_beats, beat, submitted = 0, 0, 0
if has_type(types, durability_key, 'hash') and has_type(types, totals_key, 'hash') then
  stored_beats = tonumber(redis.call('HGET', durability_key, 'beats') or 0)
  submitted = tonumber(redis.call('HGET', totals_key, 'submitted') or 0)
  beat = math.max(stored_beats, beats) + 1
  redis.call('HSET', durability_key, 'beats', integer(beat))
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
if format < floor then return {0, stored, stored_beats, beat, submitted, now_ms} end
if holder and holder ~= id and not is_below_floor() then return {0, stored, stored_beats, beat, submitted, now_ms} end
redis.call('SET', leader_key, id, 'PX', lease_ms)
redis.call('HSET', format_key, 'id', id, 'format', integer(format))
redis.call('HDEL', format_key, 'unknown', 'until_ms')
redis.call('EXPIRE', format_key, day_s)
return {1, stored, stored_beats, beat, submitted, now_ms}
