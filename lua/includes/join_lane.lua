-- Put a task that becomes ready behind the others of its lane, unless it has its place there already. Answers whether it
-- has the turn and goes into its queue; else its state is `waiting`, and `pass_lane` wakes it.
--@include integer
local function join_lane(pool, lane, id, now)
  local lane_key = pool .. ':lane:' .. lane
  local rank = redis.call('ZRANK', lane_key, id)
  if rank then return rank == 0 end
  -- By time, for people; but never before those that are there, whatever the clock does.
  local last = redis.call('ZRANGE', lane_key, -1, -1, 'WITHSCORES')
  local score = now
  if last[2] and tonumber(last[2]) >= now then score = tonumber(last[2]) + 1 end
  redis.call('ZADD', lane_key, integer(score), id)
  return not last[1]
end
