-- Whether a stored state is final: nothing leaves it by itself.
local function has_ended(state)
  return state == 'succeeded' or state == 'dead' or state == 'cancelled' or state == 'expired'
end
