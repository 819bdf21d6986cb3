-- Add to a number of the desired state. What is no number counts as 0: nobody who can write there can keep a command out.
--@include whole
local function count_desired(pool, field, by)
  local desired_key = pool .. ':desired'
  redis.call('HSET', desired_key, field, whole((tonumber(redis.call('HGET', desired_key, field) or 0) or 0) + by))
end
