-- Reads values of an envelope.

-- Returns the queue of an envelope's skill, which is the envelope's first value. A record without `queue` waits there.
local function skill_queue(envelope)
  -- MessagePack: one byte opens the array, then a text of at most 31 bytes, or of more with a byte for its length.
  local size = string.byte(envelope, 2) or 160
  if size == 217 then return 'skill:' .. string.sub(envelope, 4, 3 + (string.byte(envelope, 3) or 0)) end
  return 'skill:' .. string.sub(envelope, 3, 2 + size - 160)
end

-- Returns where the options of an envelope begin, behind skill and arguments, or nil: a plain task has none. The
-- arguments are skipped by their length, because the decoder does not know the binary type.
local function options_at(envelope)
  -- MessagePack: one byte opens the array, then a text of at most 31 bytes, or of more with a byte for its length.
  local size, at = string.byte(envelope, 2) or 160, 3
  if size == 217 then size, at = string.byte(envelope, 3) or 0, 4 else size = size - 160 end
  at = at + size
  local kind, a, b, c, d = string.byte(envelope, at, at + 4)
  -- A damaged envelope may end inside a length.
  a, b, c, d = a or 0, b or 0, c or 0, d or 0
  if kind == 196 then at = at + 2 + a
  elseif kind == 197 then at = at + 3 + a * 256 + b
  elseif kind == 198 then at = at + 5 + ((a * 256 + b) * 256 + c) * 256 + d
  else return nil end
  if at > #envelope then return nil end
  return at
end

-- Returns the session of an envelope, or nil. It follows the priority.
local function session_of(envelope)
  local at = options_at(envelope)
  if not at then return nil end
  local _, _, session = cmsgpack.unpack_limit(envelope, 2, at - 1)
  return session or nil
end

-- Returns the first task of the family of a task: itself without a parent. nil: an older program has submitted it. Parent,
-- depth and root are the seventh, eighth and tenth option.
local function family_of(id, envelope)
  local at = options_at(envelope)
  if not at then return id end
  local values = {cmsgpack.unpack_limit(envelope, 10, at - 1)}
  local depth = tonumber(values[9]) or 0
  if depth == 0 then return id end
  return depth == 1 and values[8] or values[11] or nil
end

-- Returns the task that submitted a task, the seventh option of its envelope; nil for none.
local function parent_of(envelope)
  local at = options_at(envelope)
  if not at then return nil end
  local values = {cmsgpack.unpack_limit(envelope, 7, at - 1)}
  return values[8] or nil
end

-- Returns how many parents a task has above it, the eighth option of its envelope.
local function depth_of(envelope)
  local at = options_at(envelope)
  if not at then return 0 end
  local values = {cmsgpack.unpack_limit(envelope, 8, at - 1)}
  return tonumber(values[9]) or 0
end
