-- Sums of costs in a sliding window: a text of doubles with the sum of all sub-windows, then of each the time of its first
-- cost, the time of its last cost and its sum. A sub-window spans a 64th of the window, so at most 65 of them count.

-- Returns the time that a window counts by: now, or the time of its last cost while the clock is behind it.
local function sums_clock(sums, now)
  local size = #sums
  if size == 0 then return now end
  return math.max(now, (struct.unpack('>d', sums, size - 15)))
end

-- Returns the sum of the window that ends now, and the place of the oldest sub-window in it. A sub-window leaves the window
-- as a whole, with its last time.
local function sum_window(sums, now, window_us)
  local size, outside = #sums, now - window_us
  local used, oldest = 0, 9
  if size > 0 then used = struct.unpack('>d', sums) end
  while oldest < size do
    local _, last, sum = struct.unpack('>ddd', sums, oldest)
    if last > outside then break end
    used, oldest = used - sum, oldest + 24
  end
  return used, oldest
end

-- Returns the last time of the sub-windows that must leave the window before it has `excess` less.
local function last_to_leave(sums, oldest, excess)
  local left, place, size, last = excess, oldest, #sums, 0
  while left > 0 and place < size do
    local _, sum
    _, last, sum = struct.unpack('>ddd', sums, place)
    left, place = left - sum, place + 24
  end
  return last
end

-- Returns the sums with a cost at `now`, without the sub-windows that have left. `used` and `oldest` are those of
-- `sum_window`.
local function add_cost(sums, used, oldest, now, window_us, cost)
  local size = #sums
  local first, sum, kept = now, 0, string.sub(sums, oldest)
  if oldest < size then
    local newest_first, _, newest_sum = struct.unpack('>ddd', sums, size - 23)
    if now - newest_first <= window_us / 64 then
      first, sum, kept = newest_first, newest_sum, string.sub(sums, oldest, size - 24)
    end
  end
  return struct.pack('>d', used + cost) .. kept .. struct.pack('>ddd', first, now, sum + cost)
end

-- Returns the sums without a part of a cost that was added at the time `at`; as they are if its sub-window has left.
local function take_back(sums, at, cost)
  local place = 9
  while place < #sums do
    local first, last, sum = struct.unpack('>ddd', sums, place)
    if first <= at and at <= last then
      local less = math.min(cost, sum)
      local total = struct.unpack('>d', sums)
      return struct.pack('>d', total - less) .. string.sub(sums, 9, place - 1) .. struct.pack('>ddd', first, last, sum - less)
        .. string.sub(sums, place + 24)
    end
    place = place + 24
  end
  return sums
end

-- Returns stored sums; empty for a text that no program writes.
local function read_sums(stored)
  local size = stored and #stored or 0
  if size < 32 or size > 1608 or (size - 8) % 24 ~= 0 then return '' end
  return stored
end
