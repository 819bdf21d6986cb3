-- Put a rate over the one that agents or settings define, which is kept under `=NAME` (no limit is called that); without
-- a count let that one count again.
local function set_limit(pool, name, count, window)
  local limits_key = pool .. ':limits'
  local defined = redis.call('HGET', limits_key, '=' .. name)
  if count then
    local current = redis.call('HGET', limits_key, name)
    if not defined and current then redis.call('HSET', limits_key, '=' .. name, current) end
    redis.call('HSET', limits_key, name, string.format('%.0f %.0f', count, window))
  elseif defined then
    redis.call('HSET', limits_key, name, defined)
    redis.call('HDEL', limits_key, '=' .. name)
  end
end
