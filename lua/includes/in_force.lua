-- Whether a slot of the desired state is filled with something that is in force: its first letter is 1.
local function in_force(pool, slot)
  local value = redis.call('HGET', pool .. ':desired', slot)
  return value and string.byte(value) == 49
end
