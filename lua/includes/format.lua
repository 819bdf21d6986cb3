-- The floor of a pool: the lowest format of a program that it admits (protocol rule 30).
--@include time: integer
--@include key: has_type

-- Returns the floor as text, or an empty one if Redis has lost it.
local function read_floor(pool)
  local format_key = pool .. ':format'
  return has_type({}, format_key, 'string') and redis.call('GET', format_key) or ''
end

-- Raises the floor if it is lower or lost; returns it as text.
local function raise_floor(pool, format)
  local stored = read_floor(pool)
  if format <= (tonumber(stored) or 0) then return stored end
  local raised = integer(format)
  redis.call('SET', pool .. ':format', raised)
  return raised
end
