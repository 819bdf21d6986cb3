-- Whether a firing comes too late: another one has had this fire time, or the schedule was paused, changed or deleted. Of
-- `firing` (see note_firing) the first two count; without a fire time a person fires it, for which it need only exist.
local function firing_over(pool, firing)
  local found = redis.call('HMGET', pool .. ':schedule:' .. firing[1], 'next', 'paused')
  if not found[1] then return true end
  return firing[2] ~= '' and (found[1] ~= firing[2] or found[2] ~= false)
end
