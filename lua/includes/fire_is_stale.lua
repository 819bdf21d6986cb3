-- Whether a fire comes too late: another one has had this fire time, or the schedule was paused, changed or deleted. Of
-- `fire` (see record_fire) the first two count; without a fire time a person fires it, for which it need only exist.
local function fire_is_stale(pool, fire)
  local found = redis.call('HMGET', pool .. ':schedule:' .. fire[1], 'next', 'paused')
  if not found[1] then return true end
  return fire[2] ~= '' and (found[1] ~= fire[2] or found[2] ~= false)
end
