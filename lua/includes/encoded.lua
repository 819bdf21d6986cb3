-- A foreign id as it stands in keys: as `encode_foreign` in orchestrator/core/ids.py.
local function encoded(id)
  return (string.gsub(id, '[^%w._-]', function(sign) return string.format('%%%02X', string.byte(sign)) end))
end
