-- Whether a slot of the desired state is filled with something that is active: its first letter is 1.
local function is_active(pool, slot)
  local value = redis.call('HGET', pool .. ':desired', slot)
  return value and string.byte(value) == 49
end
