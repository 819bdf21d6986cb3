-- What a path holds: its version (0: nothing is there), who wrote it, its JSON text.
local function split_value(stored)
  if not stored then return 0, '', false end
  local version, writer, at = string.match(stored, '^(%d+) (%S*) ()')
  return tonumber(version), writer, string.sub(stored, at)
end
