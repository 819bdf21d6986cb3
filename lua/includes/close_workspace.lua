-- End a change of a session's workspace: note the event if there are `changes`, the counts, the op id and the lifetime,
-- and answer ok, the revision, and `answer`. Of the counts only those are written that have changed.
--@include note_event
--@include integer
local function close_workspace(scope, ws, changes, answer)
  local meta_key, parts_key, op_key = scope .. ':meta', scope .. ':ws:parts', scope .. ':op:' .. ws.window
  if changes then
    ws.rev = ws.rev + 1
    note_event(scope, ws, changes)
  end
  local counts = {'rev', ws.rev, 'items', ws.items, 'bytes', ws.bytes}
  local function note(name, value)
    counts[#counts + 1] = name
    counts[#counts + 1] = value
  end
  if ws.marks[1] ~= ws.floor then note('floor', ws.floor) end
  if ws.marks[2] ~= ws.top then note('top', ws.top) end
  if ws.marks[3] ~= ws.tail then note('tail', ws.tail) end
  if changes then note('noted', integer(ws.noted)) end
  if ws.placed then note('places', table.concat(ws.places, ' ')) end
  if ws.turned then
    note('op', ws.window)
    note('older', ws.older)
    note('since', ws.since)
  end
  if ws.moved then
    note('born', ws.born)
    note('fresh', ws.fresh)
    note('dies', ws.dies)
  end
  redis.call('HSET', meta_key, unpack(counts))
  for part, number in pairs(ws.parts) do redis.call('HSET', parts_key, part, number) end
  redis.call('HSET', op_key, ws.op, cmsgpack.pack({ws.rev, unpack(answer)}))
  -- Also when somebody has deleted it: no key stays without a lifetime.
  if ws.turned or ws.new_ops then redis.call('PEXPIRE', op_key, ws.window_ms * 2) end
  if ws.outdated then redis.call('UNLINK', scope .. ':op:' .. ws.outdated) end
  if ws.moved then
    redis.call('PEXPIREAT', meta_key, ws.dies)
    for _, key in ipairs(ws.keys) do redis.call('PEXPIREAT', key, ws.dies) end
  else
    -- The list of parts, which stands last, is written only with a part.
    for i = 1, #ws.keys - (next(ws.parts) and 0 or 1) do
      local key = ws.keys[i]
      redis.call('PEXPIREAT', key, ws.dies, 'NX')
    end
  end
  return {'ok', ws.rev, unpack(answer)}
end
