-- Begin a change of a session's workspace. Answers what is known of it, or nil and the answer to give: `duplicate` with
-- what the first call answered, or `fenced` with the value of the lock that stands now. `suffixes` are the keys that
-- will be written; all of them, and those whose lifetime is due, are looked at here (protocol rule 26).
--@include now_us
--@include fenced_by
local function open_workspace(scope, kind, caller, limits, suffixes, override)
  local ws = {
    kind = kind, op = kind .. ':' .. caller[1][1], agent = caller[1][4],
    ttl_ms = limits[1][1], life_ms = limits[1][2], window_ms = limits[1][3], max_ops = limits[1][4],
    max_items = limits[1][5], max_bytes = limits[1][6], max_events = limits[1][7], event_bytes = limits[1][8],
    max_parts = limits[1][9], json = limits[1][10] == 1,
    now_ms = math.floor(now_us(override) / 1000), keys = {}, parts = {},
  }
  local meta_key, parts_key = scope .. ':meta', scope .. ':ws:parts'
  local found = redis.call('HMGET', meta_key,
    'rev', 'born', 'fresh', 'dies', 'items', 'bytes', 'floor', 'top', 'tail', 'op', 'older', 'since', 'noted', 'places')
  ws.window, ws.older = found[10] or '0', found[11] or '0'
  local first = redis.call('HGET', scope .. ':op:' .. ws.window, ws.op)
    or redis.call('HGET', scope .. ':op:' .. ws.older, ws.op)
  if first then return nil, {'duplicate', unpack(cmsgpack.unpack(first))} end
  local owner = fenced_by(scope, caller[1][2], caller[1][3])
  if owner then return nil, {'fenced', owner} end

  ws.rev, ws.born = tonumber(found[1] or 0), tonumber(found[2] or ws.now_ms)
  ws.items, ws.bytes = tonumber(found[5] or 0), tonumber(found[6] or 0)
  ws.floor, ws.top, ws.tail = tonumber(found[7] or 0), tonumber(found[8] or 0), tonumber(found[9] or 0)
  ws.had_items, ws.had_bytes, ws.marks = ws.items, ws.bytes, {ws.floor, ws.top, ws.tail}
  ws.since = tonumber(found[12] or 0)
  ws.noted, ws.places = tonumber(found[13] or 0), {}
  for id, before in string.gmatch(found[14] or '', '(%d+%-%d+) (%d+)') do
    ws.places[#ws.places + 1] = id
    ws.places[#ws.places + 1] = before
  end
  local ops = redis.call('HLEN', scope .. ':op:' .. ws.window)
  ws.new_ops = ops == 0
  -- A window of op ids is full or old: the next one begins, under a name that was never used.
  if ws.now_ms >= ws.since + ws.window_ms or ops >= ws.max_ops then
    ws.turned, ws.outdated, ws.older = true, ws.older, ws.window
    ws.window = string.format('%.0f', math.max(tonumber(ws.window) + 1, math.floor(ws.now_ms / 1000)))
    ws.since = ws.now_ms
  end
  -- All keys die at one moment. It is moved on by an eighth of the lifetime at a time, so that most calls move nothing.
  ws.fresh, ws.dies = tonumber(found[3] or 0), tonumber(found[4] or 0)
  ws.moved = ws.now_ms >= ws.fresh + ws.ttl_ms / 8
  for i = 1, #suffixes do ws.keys[i] = scope .. suffixes[i] end
  if ws.json then ws.keys[#ws.keys + 1] = scope .. ':ws:json' end
  if ws.moved then
    ws.fresh = ws.now_ms
    ws.dies = math.floor(math.min(ws.now_ms + ws.ttl_ms * 9 / 8, ws.born + ws.life_ms))
    for _, suffix in ipairs({':ws:doc', ':ws:task', ':dir', ':dir:info', ':ws:json'}) do
      ws.keys[#ws.keys + 1] = scope .. suffix
    end
    local parts = redis.call('HKEYS', parts_key)
    for i = 1, #parts do ws.keys[#ws.keys + 1] = scope .. ':' .. parts[i] end
  end
  for _, key in ipairs({scope .. ':ws:ev', parts_key}) do ws.keys[#ws.keys + 1] = key end
  local touched_keys = ws.keys
  redis.call('EXISTS', unpack(touched_keys))
  -- Every change adds to it at its end, where nothing may fail any more: a key of another type is refused here.
  redis.call('XLEN', scope .. ':ws:ev')
  return ws
end
