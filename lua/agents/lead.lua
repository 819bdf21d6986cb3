#!lua flags=allow-oom
-- Acquires or renews the lease of the leading supervisor, and lists the caller among the supervisors that run.
-- returns: 1 (the caller leads) | 0 (another supervisor leads); the lowest format that the pool admits, or empty
-- repeat: renews the lease
local pool     = KEYS[1]            -- key: root of the pool's slot
local id       = ARGV[1]            -- str: supervisor
local lease_ms = tonumber(ARGV[2])  -- int: duration of the lease
local format   = tonumber(ARGV[3])  -- int: format of the supervisor
local version  = ARGV[4]            -- str: version of the supervisor
local now_arg  = ARGV[5]            -- time: test override, microseconds
--@include time: day_s, now_us, integer
--@include format: read_floor

local leader_key, supervisors_key = pool .. ':leader', pool .. ':supervisors'
local now_ms = math.floor(now_us(now_arg) / 1000)
local floor = read_floor(pool)
local holder = redis.call('GET', leader_key)
local listed = redis.call('ZRANGE', supervisors_key, 0, 99)

-- Returns the format of a supervisor; one that is not listed is older than the list.
local function format_of(supervisor)
  for i = 1, #listed do
    local name, of = string.match(listed[i], '^(%S+) (%d+) ')
    if name == supervisor then return tonumber(of) end
  end
  return 2
end

redis.call('ZREMRANGEBYSCORE', supervisors_key, '-inf', integer(now_ms - math.max(3 * lease_ms, 60000)))
redis.call('ZADD', supervisors_key, integer(now_ms), id .. ' ' .. integer(format) .. ' ' .. version)
redis.call('EXPIRE', supervisors_key, day_s)
if format < (tonumber(floor) or 0) then return {0, floor} end
-- A holder below the floor has missed that the floor was raised, and loses the lease.
if holder and holder ~= id and format_of(holder) >= (tonumber(floor) or 0) then return {0, floor} end
redis.call('SET', leader_key, id, 'PX', lease_ms)
return {1, floor}
