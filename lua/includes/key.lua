-- Types of keys, and ids as parts of keys.

-- Returns whether a key is absent or has this type. `known` caches types for one call.
local function has_type(known, key, type)
  local found = known[key]
  if not found then
    found = redis.call('TYPE', key)['ok']
    known[key] = found
  end
  return found == 'none' or found == type
end

-- Encodes a foreign id for use in keys, as `encode_foreign` in orchestrator/core/ids.py.
local function percent_encode(id)
  return (string.gsub(id, '[^%w._-]', function(sign) return string.format('%%%02X', string.byte(sign)) end))
end

-- Makes a key live for at least `life_ms` from now; a longer lifetime stays.
local function extend_life(key, life_ms)
  local life = string.format('%.0f', life_ms)
  redis.call('PEXPIRE', key, life, 'NX')
  redis.call('PEXPIRE', key, life, 'GT')
end
