-- Counters of the pool, and the board of the day.
--@include time: day_s, utc_day

-- Adds to a counter, and returns its value. One that holds no number begins anew, because a damaged counter must not keep
-- tasks from being submitted or from ending.
local function increment(key, name, count)
  local value = redis.pcall('HINCRBY', key, name, count)
  if type(value) == 'number' then return value end
  redis.pcall('HSET', key, name, count)
  return count
end

-- Adds to counters: `counts` maps a name to a number. Totals never expire; minutes expire after 3 days.
local function increment_counters(pool, now, counts)
  if not next(counts) then return end
  local minute_key = pool .. ':stats:' .. string.format('%.0f', math.floor(now / 60000000))
  for name, count in pairs(counts) do
    increment(pool .. ':stats:TOTAL', name, count)
    if increment(minute_key, name, count) == count then redis.call('EXPIRE', minute_key, 3 * day_s) end
  end
end

-- Adds the numbers of done tasks per agent to the board of the day, and sets the board's lifetime when an agent is new.
local function count_done(pool, now, done)
  local board_key = next(done) and pool .. ':board:' .. utc_day(now)
  for agent, count in pairs(done) do
    if tonumber(redis.call('ZINCRBY', board_key, count, agent)) == count then
      redis.call('EXPIRE', board_key, 8 * day_s)
    end
  end
end
