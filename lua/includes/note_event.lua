-- Add an event to a session's workspace and drop the oldest while their bytes are above the cap of the workspace; the
-- newest always stays. Nothing is read for it: `ws.noted` counts the bytes of all events so far, `ws.places` has every
-- so often the id of an event and what was counted before it. The first of them is the oldest event that is kept.
--@include integer
local function note_event(scope, ws, changes)
  local events_key, places = scope .. ':ws:ev', ws.places
  local packed = cmsgpack.pack(changes)
  local id = redis.call('XADD', events_key, 'MAXLEN', '~', ws.max_events, '*',
    'k', ws.kind, 'r', ws.rev, 'a', ws.agent, 'c', packed)
  local before = ws.noted
  ws.noted = before + #packed + #ws.agent
  -- A place about every sixteenth of the cap, and for each larger event: a few dozen at most, and each cut goes little
  -- further than it must.
  if #places == 0 or ws.noted - tonumber(places[#places]) > ws.max_bytes / 16 then
    places[#places + 1] = id
    places[#places + 1] = integer(before)
    ws.placed = true
  end
  local first = 1
  while ws.noted - tonumber(places[first + 1]) > ws.max_bytes and first + 2 < #places do first = first + 2 end
  if first > 1 then
    ws.places, ws.placed = {unpack(places, first)}, true
    redis.call('XTRIM', events_key, 'MINID', places[first])
  end
end
