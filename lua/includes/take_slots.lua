-- Take one slot of every limit for each grant; `grants` is a list of "task:generation" (protocol rule 14).
--@include limit_clock
local function take_slots(pool, names, now, grants)
  for name in string.gmatch(names, '%S+') do
    local limit_key = pool .. ':limit:' .. name
    local window = tonumber(string.match(redis.call('HGET', pool .. ':limits', name), ' (%d+)$'))
    -- Time never runs behind the last grant, so that the window of a clock that stepped back ends where it should.
    local clock, anchor = limit_clock(limit_key, now)
    local scored = {}
    for i = 1, #grants do
      scored[2 * i - 1] = string.format('%.0f', clock)
      scored[2 * i] = grants[i]
    end
    redis.call('ZADD', limit_key, unpack(scored))
    if anchor then redis.call('ZREM', limit_key, anchor) end
    redis.call('ZREMRANGEBYSCORE', limit_key, '-inf', string.format('%.0f', clock - window))
    redis.call('PEXPIRE', limit_key, math.ceil(window / 1000) + 1000)
  end
end
