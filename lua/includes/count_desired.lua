-- Add to a number of the desired state. What is no number that was counted here, of 15 digits at most, counts as 0: nobody
-- who can write there can keep a command out, or let the number stand still.
--@include integer
local function count_desired(pool, field, by)
  local desired_key = pool .. ':desired'
  local was = tonumber(string.match(redis.call('HGET', desired_key, field) or '', '^%d+$') or 0)
  if was >= 1e15 then was = 0 end
  redis.call('HSET', desired_key, field, integer(math.max(0, was + by)))
end
