-- Counters of the pool and the board of the day.
--@include time: utc_day

-- Count what happened: `counts` maps a counter's name to what to add. Totals stay, minutes live 3 days.
local function increment_counters(pool, now, counts)
  if not next(counts) then return end
  local minute_key = pool .. ':stats:' .. string.format('%.0f', math.floor(now / 60000000))
  for name, count in pairs(counts) do
    redis.call('HINCRBY', pool .. ':stats:TOTAL', name, count)
    if redis.call('HINCRBY', minute_key, name, count) == count then redis.call('EXPIRE', minute_key, 259200) end
  end
end

-- Add to the board of the day how many tasks agents have done: `done` maps agents to numbers. The first one that an
-- agent has on it gives the board its time again.
local function count_done(pool, now, done)
  local board_key = next(done) and pool .. ':board:' .. utc_day(now)
  for agent, count in pairs(done) do
    if tonumber(redis.call('ZINCRBY', board_key, count, agent)) == count then
      redis.call('EXPIRE', board_key, 691200)
    end
  end
end
