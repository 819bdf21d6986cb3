-- The queue of an envelope's skill, whose name is the first thing in it: where a task waits whose record has
-- no `queue`.
local function skill_queue(envelope)
  -- MessagePack: one byte opens the array, then a text of at most 31 bytes, or of more with a byte for its length.
  local size = string.byte(envelope, 2) or 160
  if size == 217 then return 'skill:' .. string.sub(envelope, 4, 3 + (string.byte(envelope, 3) or 0)) end
  return 'skill:' .. string.sub(envelope, 3, 2 + size - 160)
end
