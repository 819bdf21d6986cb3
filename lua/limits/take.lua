#!lua flags=allow-oom
-- Begins a call of a provider, if nothing blocks the provider and its windows and its calls at once have room. Takes one
-- request and the reserved tokens, and a lease, which `limits/renew` extends and `limits/settle` ends.
-- status: taken | full (a limit has no room) | blocked (nothing was taken)
-- returns: status, then us until it may fit (0: unknown) and the limit that has no room (requests, tokens, at_once);
--          or the end of the block in ms (0: until it is cleared), its state, its stored value, and the ms that it lasts
-- repeat: returns taken while the call runs; if the provider has been blocked since, ends the call and returns blocked
local pool       = KEYS[1]                      -- key: root of the pool's slot; of a shared provider, of the scope of its limit
local name       = ARGV[1]                      -- str: limit
local call       = ARGV[2]                      -- str: id of the call
local tokens     = tonumber(ARGV[3])            -- int: tokens to reserve, at most those of a window
local definition = cmsgpack.unpack(ARGV[4])[1]  -- row: requests requests_us tokens tokens_us at_once
local shared     = ARGV[5]                      -- str: 1 = pools share it, and list it themselves
local lease_ms   = tonumber(ARGV[6])            -- int: how long the lease lasts
local by         = ARGV[7]                      -- str: who calls, shown to operators
local now_arg    = ARGV[8]                      -- time: test override, microseconds
--@include time: now_us, integer
--@include blocked: read_blocked, await_trial, end_trial
--@include sums: sums_clock, sum_window, last_to_leave, add_cost
--@include provider: read_window, drop_expired, list_provider, end_call, usage_ms, call_kept_ms

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local usage_key = pool .. ':provider:usage:' .. name
local leases_key, calls_key = pool .. ':provider:leases:' .. name, pool .. ':provider:calls:' .. name
local lease_end = redis.call('ZSCORE', leases_key, call)
local runs = lease_end and tonumber(lease_end) > now
local kind, until_ms, told = read_blocked(pool, name, now_ms, true)

if kind and kind ~= 'trial' and not (runs and kind == 'trying') then
  if runs then
    end_trial(pool, name, call)
    end_call(pool, name, call, 0, definition.tokens_us, now)
  end
  return {'blocked', until_ms, kind, told, math.max(0, until_ms - now_ms)}
end
if runs then return {'taken', 0, '', ''} end

-- Returns us until a cost fits into a window, and the sums with it; 0 and nothing if the unit has no limit.
local function with_cost(unit, most, window_us, cost)
  if most == 0 then return 0 end
  local field, sums = read_window(usage_key, unit, window_us)
  local clock = sums_clock(sums, now)
  local used, oldest = sum_window(sums, clock, window_us)
  local excess = used + cost - most
  if excess > 0 then return math.max(1, last_to_leave(sums, oldest, excess) + window_us - now) end
  if cost == 0 then return 0 end
  return 0, field, add_cost(sums, used, oldest, clock, window_us, cost), clock
end

local wait_us, request_field, requests = with_cost('requests', definition.requests, definition.requests_us, 1)
local wait_tokens_us, token_field, sums, at = with_cost('tokens', definition.tokens, definition.tokens_us, tokens)
local shown = table.concat(definition, ' ')
local known = shared == '1' or redis.call('HGET', pool .. ':providers', name) == shown
drop_expired(pool, name, now, lease_ms)
if wait_us > 0 or wait_tokens_us > 0 then
  return {'full', math.max(wait_us, wait_tokens_us), wait_us >= wait_tokens_us and 'requests' or 'tokens', ''}
end
-- Leases that have expired and are not removed yet do not count.
if definition.at_once > 0 and redis.call('ZCOUNT', leases_key, '(' .. integer(now), '+inf') >= definition.at_once then
  return {'full', 0, 'at_once', ''}
end

-- The only key that was not read is written first, because it may be of another type.
redis.call('HSET', calls_key, call, tokens .. ' ' .. integer(at or now) .. ' ' .. by)
redis.call('ZADD', leases_key, integer(now + lease_ms * 1000), call)
redis.call('PEXPIRE', calls_key, integer(lease_ms + call_kept_ms))
redis.call('PEXPIRE', leases_key, integer(lease_ms + call_kept_ms))
if request_field then redis.call('HSET', usage_key, request_field, requests) end
if token_field then redis.call('HSET', usage_key, token_field, sums) end
if request_field or token_field then redis.call('PEXPIRE', usage_key, integer(usage_ms)) end
if kind == 'trial' then await_trial(pool, name, now_ms, call, now_ms + lease_ms) end
if not known then list_provider(pool, name, shown) end
return {'taken', 0, '', ''}
