-- Whether a key may be used as what it should be: absent, or of this type. `known` remembers what was asked in this call.
local function usable(known, key, type)
  local found = known[key]
  if not found then
    found = redis.call('TYPE', key)['ok']
    known[key] = found
  end
  return found == 'none' or found == type
end
