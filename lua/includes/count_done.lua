-- Add to the board of the day how many tasks agents have done: `done` maps agents to numbers. The first one that an
-- agent has on it gives the board its time again.
--@include utc_day
local function count_done(pool, now, done)
  local board_key = next(done) and pool .. ':board:' .. utc_day(now)
  for agent, count in pairs(done) do
    if tonumber(redis.call('ZINCRBY', board_key, count, agent)) == count then
      redis.call('EXPIRE', board_key, 691200)
    end
  end
end
