-- The time by which a limit counts: now, or that of its last grant, returned or not, while the clock is behind it. The
-- second value is the member that keeps the time of a returned grant, if that one was the last.
local function limit_clock(limit_key, now)
  local last = redis.call('ZRANGE', limit_key, -1, -1, 'WITHSCORES')
  local anchor = last[1] and string.match(last[1], '^%d+$')
  local time = tonumber(anchor or last[2])
  if time and time > now then return time, anchor end
  return now, anchor
end
