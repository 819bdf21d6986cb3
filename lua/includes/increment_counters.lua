-- Count what happened: `counts` maps a counter's name to what to add. Totals stay, minutes live 3 days.
local function increment_counters(pool, now, counts)
  if not next(counts) then return end
  local minute_key = pool .. ':stats:' .. string.format('%.0f', math.floor(now / 60000000))
  for name, count in pairs(counts) do
    redis.call('HINCRBY', pool .. ':stats:TOTAL', name, count)
    if redis.call('HINCRBY', minute_key, name, count) == count then redis.call('EXPIRE', minute_key, 259200) end
  end
end
