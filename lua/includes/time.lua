-- Time, and numbers as text.

-- Seconds of a day.
local day_s = 86400

-- Returns the server time in microseconds; tests override it.
local function now_us(override)
  if override ~= '' then return tonumber(override) end
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Returns the UTC day of a time in microseconds, as 2026-11-21.
local function utc_day(now)
  -- Years begin in March here, so that the leap day comes last; 719468 days separate such a year 0 from 1970.
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

-- Formats a whole number; Lua's own conversion keeps 14 digits only.
local function integer(number)
  return string.format('%.0f', number)
end
