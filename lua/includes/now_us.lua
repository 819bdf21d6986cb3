-- Server time in microseconds; a test may override it.
local function now_us(override)
  if override ~= '' then return tonumber(override) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
