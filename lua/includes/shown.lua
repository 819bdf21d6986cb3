-- A value as an event carries it: false for nothing, true for one too large to be told.
local function shown(value, most)
  if not value then return false end
  if #value > most then return true end
  return value
end
