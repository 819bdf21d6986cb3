-- Whether a workspace has room for what was added to its counts; answers what is full if not. What shrinks may pass.
local function has_room(ws)
  if ws.items > ws.max_items and ws.items > ws.had_items then return false, 'items' end
  if ws.bytes > ws.max_bytes and ws.bytes > ws.had_bytes then return false, 'bytes' end
  return true
end
