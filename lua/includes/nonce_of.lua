-- The random part of a lock's value: of a named lock it comes second, of an execution lock last.
local function nonce_of(value)
  return string.match(value, '^%d+:(%x+):') or string.match(value, ':(%x+)$')
end
