#!lua flags=allow-oom
-- Takes room in a sliding window if enough is free; a refused call takes none.
-- returns: allowed | duplicate | refused, then the used room, and us until a refused call would fit
-- repeat: returns duplicate while the op is in the window, and at least until 1000 more calls were allowed
local scope     = KEYS[1]            -- key: root of the limit's slot
local op        = ARGV[1]            -- str: op id
local most      = tonumber(ARGV[2])  -- int: room of a window, at most 2^53
local window_us = tonumber(ARGV[3])  -- int: length of a window, microseconds
local cost      = tonumber(ARGV[4])  -- int: room to take, at most `most`
local sums      = tonumber(ARGV[5])  -- int: 1: no program still counts in `window`
local now_arg   = ARGV[6]            -- time: test override, microseconds
--@include time: now_us, integer
--@include dedup: earlier_reply, store_reply
--@include sums: sums_clock, sum_window, add_cost

-- One key per length, so that two windows of one name do not disturb each other.
local window_ms = window_us / 1000
local usage_key = scope .. ':usage:' .. integer(window_ms)
-- Programs that know no sums count here, one member per unit. Both keys count, so that no switch between them allows
-- more than the limit.
local units_key = scope .. ':window:' .. integer(window_ms)

local usage = redis.call('GET', usage_key) or ''
local size = #usage
local newest_unit = redis.call('ZRANGE', units_key, -1, -1, 'WITHSCORES')[2]
local op_unit = newest_unit and redis.call('ZSCORE', units_key, op .. ':1')
local earlier = earlier_reply(usage_key, op)

-- A clock that steps back reopens no window.
local clock = now_us(now_arg)
local now = sums_clock(usage, math.max(clock, tonumber(newest_unit) or 0))
local outside = now - window_us
local used, oldest = sum_window(usage, now, window_us)
local units = newest_unit and redis.call('ZCOUNT', units_key, '(' .. integer(outside), '+inf') or 0

if (earlier and earlier[2] > outside) or (op_unit and tonumber(op_unit) > outside) then
  return {'duplicate', used + units, 0}
end
-- Sums above 2^53 would be rounded; this difference is not.
local excess = cost - (most - units - used)
if excess > 0 then
  -- The call fits when this much of the oldest has left the window: sub-windows, and units for what then remains.
  local leaves, left, last, place = math.huge, excess, 0, oldest
  while left > 0 do
    if left <= units then
      local unit = redis.call('ZRANGE', units_key, '(' .. integer(outside), '+inf', 'BYSCORE', 'LIMIT', left - 1, 1,
        'WITHSCORES')[2]
      leaves = math.min(leaves, math.max(last, tonumber(unit)))
    end
    if place > size then break end
    local _, room
    _, last, room = struct.unpack('>ddd', usage, place)
    left, place = left - room, place + 24
  end
  if left <= 0 then leaves = math.min(leaves, last) end
  return {'refused', used + units, leaves + window_us - clock}
end

local lifetime_ms = integer(math.ceil(window_ms) + 1000)
if sums == 0 and size == 0 then
  local taken = {}
  for i = 1, cost do
    taken[i * 2 - 1] = integer(now)
    taken[i * 2] = op .. ':' .. i
  end
  redis.call('ZADD', units_key, unpack(taken))
  redis.call('ZREMRANGEBYSCORE', units_key, '-inf', integer(outside))
  redis.call('PEXPIRE', units_key, lifetime_ms)
  return {'allowed', units + cost, 0}
end
redis.call('SET', usage_key, add_cost(usage, used, oldest, now, window_us, cost), 'PX', lifetime_ms)
store_reply(usage_key, op, window_ms, 1000, {now})
return {'allowed', used + units + cost, 0}
