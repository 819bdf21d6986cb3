-- The number that a part of a workspace (log, set, scratch, inbox) stands at: nil when it is new and there are too many.
local function number_part(scope, ws, part)
  local parts_key = scope .. ':ws:parts'
  local number = redis.call('HGET', parts_key, part)
  if number then return tonumber(number) end
  if redis.call('HLEN', parts_key) >= ws.max_parts then return nil end
  return ws.tail
end
