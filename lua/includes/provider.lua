-- Calls of providers that have begun: a set of leases by their end in us, and a hash with the tokens of each call. The usage of
-- a provider is a hash with a field of sums per window.
--@include time: integer
--@include sums: take_back, sums_clock, sum_window, add_cost, read_sums

-- How long the usage is kept after the last call: longer than the longest window, ms.
local usage_ms = 2764800000

-- Returns name and stored sums of a window in the usage of a provider.
local function read_window(usage_key, unit, window_us)
  local field = unit .. ':' .. integer(window_us)
  return field, read_sums(redis.call('HGET', usage_key, field))
end

-- How long a call is kept after its lease has expired, ms: it may still run, and `settle` counts what it used.
local call_kept_ms = 3600000

-- Most providers that are listed.
local most_listed = 1000

-- Removes up to 100 calls whose leases expired long ago, because their workers died. What they reserved stays counted, because
-- they may have used it. Up to 100 leases that end later than any can, because the clock stepped back, end as if begun now.
local function drop_expired(pool, name, now, lease_ms)
  local leases_key = pool .. ':provider:leases:' .. name
  local expired = redis.call('ZRANGE', leases_key, '-inf', integer(now - call_kept_ms * 1000), 'BYSCORE', 'LIMIT', 0, 100)
  if #expired > 0 then
    redis.call('HDEL', pool .. ':provider:calls:' .. name, unpack(expired))
    redis.call('ZREM', leases_key, unpack(expired))
  end
  local latest = integer(now + lease_ms * 1000)
  local late = redis.call('ZRANGE', leases_key, '(' .. latest, '+inf', 'BYSCORE', 'LIMIT', 0, 100)
  for i = 1, #late do redis.call('ZADD', leases_key, latest, late[i]) end
end

-- Lists a provider with its limits. A full list loses one that nothing blocks, which its next call lists again.
local function list_provider(pool, name, shown)
  local list_key = pool .. ':providers'
  if redis.call('HLEN', list_key) >= most_listed and redis.call('HEXISTS', list_key, name) == 0 then
    local other = redis.call('HRANDFIELD', list_key)
    if redis.call('EXISTS', pool .. ':blocked:' .. other) == 0 then redis.call('HDEL', list_key, other) end
  end
  redis.call('HSET', list_key, name, shown)
end

-- Ends a call that has used `used` tokens (-1: as many as it reserved) of a window of `tokens_us` (0: tokens have no
-- window). Returns whether it had not ended. Tokens above those reserved count also if the limit has no
-- room, or if the lease has expired.
local function end_call(pool, name, call, used, tokens_us, now)
  local calls_key, usage_key = pool .. ':provider:calls:' .. name, pool .. ':provider:usage:' .. name
  local begun = redis.call('HGET', calls_key, call)
  if not begun then return false end
  local reserved, at = string.match(begun, '^(%d+) (%d+) ')
  reserved, at = tonumber(reserved), tonumber(at)
  -- Of the keys, this one was not read before.
  redis.call('ZREM', pool .. ':provider:leases:' .. name, call)
  redis.call('HDEL', calls_key, call)
  if reserved and tokens_us > 0 and used >= 0 and used ~= reserved then
    local field, sums = read_window(usage_key, 'tokens', tokens_us)
    if used < reserved then
      sums = take_back(sums, at, reserved - used)
    else
      local clock = sums_clock(sums, now)
      local sum, oldest = sum_window(sums, clock, tokens_us)
      sums = add_cost(sums, sum, oldest, clock, tokens_us, used - reserved)
    end
    redis.call('HSET', usage_key, field, sums)
  end
  return true
end
