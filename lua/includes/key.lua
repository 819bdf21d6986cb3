-- Types of keys, and ids within their names.

-- Whether a key may be used as what it should be: absent, or of this type. `known` remembers what was asked in this call.
local function has_type(known, key, type)
  local found = known[key]
  if not found then
    found = redis.call('TYPE', key)['ok']
    known[key] = found
  end
  return found == 'none' or found == type
end

-- A foreign id as it stands in keys: as `encode_foreign` in orchestrator/core/ids.py.
local function percent_encode(id)
  return (string.gsub(id, '[^%w._-]', function(sign) return string.format('%%%02X', string.byte(sign)) end))
end
