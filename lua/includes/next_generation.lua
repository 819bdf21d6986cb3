-- The next generation: never given out twice, not even after the server lost its last second (protocol rule 1).
local function next_generation(generation, now_ms)
  local next_one = tonumber(generation) + 1
  if now_ms > next_one then return now_ms end
  return next_one
end
