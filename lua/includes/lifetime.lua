-- Seconds that an ended task is kept: its own result lifetime, at least 5 minutes (protocol rule 22). The usual one, a
-- day, is not stored.
local function lifetime(ttl, at_least_s)
  local seconds = tonumber(ttl) or 86400
  if seconds < 300 then seconds = 300 end
  if at_least_s and seconds < at_least_s then seconds = at_least_s end
  return seconds
end
