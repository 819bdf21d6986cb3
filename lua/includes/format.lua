-- The floor of a pool: the lowest format of a program that it admits (protocol rule 30).
--@include key: has_type

-- Returns the floor as text, or an empty one if Redis has lost it.
local function read_floor(pool)
  local format_key = pool .. ':format'
  return has_type({}, format_key, 'string') and redis.call('GET', format_key) or ''
end
