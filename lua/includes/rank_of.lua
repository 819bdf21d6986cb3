-- What the priority of a task adds to the time in its score. The usual one is not stored: normal, where nothing ages.
local function rank_of(stored)
  return tonumber(stored) or 20000000000000
end
