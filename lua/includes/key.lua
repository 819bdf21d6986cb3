-- Types of keys, and ids as parts of keys.
--@include time: integer

-- How long a key of another type is kept under its new name, in s.
local renamed_s = 2592000

-- Returns whether a key is absent or has this type. `known` caches types for one call.
local function has_type(known, key, type)
  local found = known[key]
  if not found then
    found = redis.call('TYPE', key)['ok']
    known[key] = found
  end
  return found == 'none' or found == type
end

-- Renames a key of another type, so that the call can write it: its owner finds it under its new name for 30 days.
local function set_aside(pool, known, suffix, type, now)
  local key = pool .. ':' .. suffix
  if has_type(known, key, type) then return end
  local renamed_key = pool .. ':mistyped:' .. suffix .. ':' .. integer(now)
  redis.call('RENAME', key, renamed_key)
  if redis.call('TTL', renamed_key) == -1 then redis.call('EXPIRE', renamed_key, renamed_s) end
  known[key] = 'none'
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
