-- Server time, and numbers as text.

-- Server time in microseconds; a test may override it.
local function now_us(override)
  if override ~= '' then return tonumber(override) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- The day of a time in microseconds, in UTC: 2026-11-21.
local function utc_day(now)
  -- Years that begin in March have their leap day last; 719468 days lie between such a year 0 and 1970.
  local days = math.floor(now / 86400000000) + 719468
  local era = math.floor(days / 146097)
  local of_era = days - era * 146097
  local years = of_era - math.floor(of_era / 1460) + math.floor(of_era / 36524) - math.floor(of_era / 146096)
  local year = math.floor(years / 365)
  local of_year = of_era - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * of_year + 2) / 153)
  local day = of_year - math.floor((153 * month + 2) / 5) + 1
  month = month < 10 and month + 3 or month - 9
  return string.format('%04d-%02d-%02d', year + era * 400 + (month <= 2 and 1 or 0), month, day)
end

-- A whole number as text: Lua's own conversion keeps 14 digits only.
local function integer(number)
  return string.format('%.0f', number)
end
