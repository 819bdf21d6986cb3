-- Append JSON texts to a log, drop from its head what lies over the cap. Answers the number of the last one, how many
-- were dropped, and the event's change; or nil and what is full.
--@include has_room
--@include number_part
--@include shown
--@include integer
local function extend_log(scope, ws, name, texts, cap)
  local part = 'ws:log:' .. name
  local log_key = scope .. ':' .. part
  local number = number_part(scope, ws, part)
  if not number then return nil, 'parts' end
  local length = redis.call('LLEN', log_key)
  -- A cap that was lowered is reached step by step: no call does more than so much.
  local dropped = math.min(math.max(0, length + #texts - cap), #texts + 500)
  if dropped > 0 then
    local old = redis.call('LRANGE', log_key, 0, dropped - 1)
    for i = 1, #old do ws.bytes = ws.bytes - #old[i] end
  end
  local entries, change = {}, {name, number + 1, dropped}
  for i = 1, #texts do
    entries[i] = integer(number + i) .. ' ' .. integer(ws.now_ms) .. ' ' .. ws.agent .. ' ' .. texts[i]
    ws.bytes = ws.bytes + #entries[i]
    change[3 + i] = shown(texts[i], ws.event_bytes)
  end
  ws.items = ws.items + #texts - dropped
  local fits, full = has_room(ws)
  if not fits then return nil, full end
  redis.call('RPUSH', log_key, unpack(entries))
  if dropped > 0 then redis.call('LTRIM', log_key, dropped, -1) end
  ws.parts[part] = number + #texts
  return number + #texts, dropped, change
end
