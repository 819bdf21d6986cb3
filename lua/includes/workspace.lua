-- Changes of a session's workspace.
--@include time: now_us, integer
--@include lock: fenced_by, refuse_change
--@include dedup: earlier_reply, store_reply

-- Splits the value of a path: version (0: none), writer, JSON text.
local function split_value(stored)
  if not stored then return 0, '', false end
  local version, writer, at = string.match(stored, '^(%d+) (%S*) ()')
  return tonumber(version), writer, string.sub(stored, at)
end

-- Returns a value as an event carries it: false for none, true for one that is too large.
local function event_value(value, most)
  if not value then return false end
  if #value > most then return true end
  return value
end

-- Returns whether a workspace is within its limits, else false and the exceeded one. A change that shrinks it passes.
local function has_room(ws)
  if ws.items > ws.max_items and ws.items > ws.had_items then return false, 'items' end
  if ws.bytes > ws.max_bytes and ws.bytes > ws.had_bytes then return false, 'bytes' end
  return true
end

-- Returns the version of a part of a workspace (log, set, scratch, inbox); nil when the part is new and there are too
-- many.
local function part_version(scope, ws, part)
  local parts_key = scope .. ':ws:parts'
  local number = redis.call('HGET', parts_key, part)
  if number then return tonumber(number) end
  if redis.call('HLEN', parts_key) >= ws.max_parts then return nil end
  return ws.tail
end

-- Writes a path of the optional JSON document beside the workspace. Runs before all other writes, because the module
-- may refuse.
local function set_json_path(scope, path, text)
  local json_key, place = scope .. ':ws:json', '$["' .. path .. '"]'
  redis.call('JSON.SET', json_key, '$', '{}', 'NX')
  if text then
    redis.call('JSON.SET', json_key, place, text)
  else
    redis.call('JSON.DEL', json_key, place)
  end
end

-- Adds an event to a workspace and drops the oldest while their bytes exceed the cap; keeps the newest. `ws.noted`
-- counts the bytes of all events so far; `ws.places` has, at intervals, the id of an event and the bytes before it,
-- from the oldest kept event on. So nothing is read.
local function add_event(scope, ws, changes)
  local events_key, places = scope .. ':ws:ev', ws.places
  local packed = cmsgpack.pack(changes)
  local id = redis.call('XADD', events_key, 'MAXLEN', '~', ws.max_events, '*',
    'k', ws.kind, 'r', ws.rev, 'a', ws.agent, 'c', packed)
  local before = ws.noted
  ws.noted = before + #packed + #ws.agent
  -- One place per sixteenth of the cap, and one per larger event: a few dozen at most, and a cut drops little more than
  -- it must.
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

-- Begins a change of a session's workspace. Returns its state, or nil and the reply: `duplicate` and the first call's
-- result, or why the caller may not make it (`refuse_change`). Presence and directives are messages, which an exclusive
-- lock does not hold up. Lists in `ws.keys` all keys whose lifetime the change extends: `suffixes`, and when it is due
-- those of the whole workspace.
--@row caller: op lock token agent exclusive
--@row limits: ttl_ms life_ms window_ms ops items bytes events event_bytes parts json
local function open_workspace(scope, kind, caller, limits, suffixes, override)
  local ws = {
    kind = kind, op = kind .. ':' .. caller.op, agent = caller.agent,
    ttl_ms = limits.ttl_ms, life_ms = limits.life_ms, window_ms = limits.window_ms, max_ops = limits.ops,
    max_items = limits.items, max_bytes = limits.bytes, max_events = limits.events, event_bytes = limits.event_bytes,
    max_parts = limits.parts, json = limits.json == 1,
    now_ms = math.floor(now_us(override) / 1000), keys = {}, parts = {},
  }
  local reply = earlier_reply(scope, ws.op)
  if reply then return nil, reply end
  local meta_key, parts_key = scope .. ':meta', scope .. ':ws:parts'
  local meta = redis.call('HMGET', meta_key,
    'rev', 'born', 'fresh', 'dies', 'items', 'bytes', 'floor', 'top', 'tail', 'noted', 'places')
  local refused
  if kind == 'join' or kind == 'direct' or kind == 'acknowledge' then
    local owner = fenced_by(scope, caller.lock, caller.token)
    refused = owner and {'fenced', owner}
  else
    refused = refuse_change(scope, caller)
  end
  if refused then return nil, refused end

  ws.rev, ws.born = tonumber(meta.rev or 0), tonumber(meta.born or ws.now_ms)
  ws.items, ws.bytes = tonumber(meta.items or 0), tonumber(meta.bytes or 0)
  ws.floor, ws.top, ws.tail = tonumber(meta.floor or 0), tonumber(meta.top or 0), tonumber(meta.tail or 0)
  ws.had_items, ws.had_bytes = ws.items, ws.bytes
  ws.had_floor, ws.had_top, ws.had_tail = ws.floor, ws.top, ws.tail
  ws.noted, ws.places = tonumber(meta.noted or 0), {}
  for id, before in string.gmatch(meta.places or '', '(%d+%-%d+) (%d+)') do
    ws.places[#ws.places + 1] = id
    ws.places[#ws.places + 1] = before
  end
  -- All keys expire together. An eighth of the lifetime must pass before they are extended, so that most calls extend
  -- none.
  ws.fresh, ws.dies = tonumber(meta.fresh or 0), tonumber(meta.dies or 0)
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
  -- Every change adds an event after its writes, where nothing may fail; a key of another type fails here.
  redis.call('XLEN', scope .. ':ws:ev')
  return ws
end

-- Ends a change of a session's workspace: adds the event if there are `changes`, stores counts, op id and lifetime, and
-- returns ok, the revision, and `answer`. Stores only counts that changed.
local function close_workspace(scope, ws, changes, answer)
  local meta_key, parts_key = scope .. ':meta', scope .. ':ws:parts'
  if changes then
    ws.rev = ws.rev + 1
    add_event(scope, ws, changes)
  end
  local counts = {'rev', ws.rev, 'items', ws.items, 'bytes', ws.bytes}
  local function note(name, value)
    counts[#counts + 1] = name
    counts[#counts + 1] = value
  end
  if ws.had_floor ~= ws.floor then note('floor', ws.floor) end
  if ws.had_top ~= ws.top then note('top', ws.top) end
  if ws.had_tail ~= ws.tail then note('tail', ws.tail) end
  if changes then note('noted', integer(ws.noted)) end
  if ws.placed then note('places', table.concat(ws.places, ' ')) end
  if ws.moved then
    note('born', ws.born)
    note('fresh', ws.fresh)
    note('dies', ws.dies)
  end
  redis.call('HSET', meta_key, unpack(counts))
  for part, number in pairs(ws.parts) do redis.call('HSET', parts_key, part, number) end
  if ws.moved then
    redis.call('PEXPIREAT', meta_key, ws.dies)
    for _, key in ipairs(ws.keys) do redis.call('PEXPIREAT', key, ws.dies) end
  else
    -- The list of parts, the last key, is written only with a part.
    for i = 1, #ws.keys - (next(ws.parts) and 0 or 1) do
      local key = ws.keys[i]
      redis.call('PEXPIREAT', key, ws.dies, 'NX')
    end
  end
  store_reply(scope, ws.op, ws.window_ms, ws.max_ops, {ws.rev, unpack(answer)})
  return {'ok', ws.rev, unpack(answer)}
end

-- Appends JSON texts to a log and drops its oldest items beyond the cap. Returns the number of the last item, the
-- number of dropped ones, and the event's change; or nil and the exceeded limit.
local function extend_log(scope, ws, name, texts, cap)
  local part = 'ws:log:' .. name
  local log_key = scope .. ':' .. part
  local number = part_version(scope, ws, part)
  if not number then return nil, 'parts' end
  local length = redis.call('LLEN', log_key)
  -- A lowered cap is reached in steps, so that no call drops more than 500 items beyond its own.
  local dropped = math.min(math.max(0, length + #texts - cap), #texts + 500)
  if dropped > 0 then
    local old = redis.call('LRANGE', log_key, 0, dropped - 1)
    for i = 1, #old do ws.bytes = ws.bytes - #old[i] end
  end
  local entries, change = {}, {name, number + 1, dropped}
  for i = 1, #texts do
    entries[i] = integer(number + i) .. ' ' .. integer(ws.now_ms) .. ' ' .. ws.agent .. ' ' .. texts[i]
    ws.bytes = ws.bytes + #entries[i]
    change[3 + i] = event_value(texts[i], ws.event_bytes)
  end
  ws.items = ws.items + #texts - dropped
  local fits, full = has_room(ws)
  if not fits then return nil, full end
  redis.call('RPUSH', log_key, unpack(entries))
  if dropped > 0 then redis.call('LTRIM', log_key, dropped, -1) end
  ws.parts[part] = number + #texts
  return number + #texts, dropped, change
end
