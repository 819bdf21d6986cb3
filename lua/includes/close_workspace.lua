-- End a change of a session's workspace: note the event if there are `changes`, the counts, the op id and the lifetime,
-- and answer ok, the revision, and `answer`.
--@include whole
local function close_workspace(scope, ws, changes, answer)
  local meta_key, op_key = scope .. ':meta', scope .. ':op:' .. ws.window
  if changes then
    ws.rev = ws.rev + 1
    redis.call('XADD', scope .. ':ws:ev', 'MAXLEN', '~', ws.max_events, '*',
      'k', ws.kind, 'r', whole(ws.rev), 'a', ws.agent, 'c', cmsgpack.pack(changes))
  end
  redis.call('HSET', meta_key, 'rev', whole(ws.rev), 'born', whole(ws.born), 'fresh', whole(ws.fresh),
    'dies', whole(ws.dies), 'items', whole(ws.items), 'bytes', whole(ws.bytes), 'floor', whole(ws.floor),
    'top', whole(ws.top), 'tail', whole(ws.tail), 'op', ws.window, 'older', ws.older, 'since', whole(ws.since))
  local parts = {}
  for part, number in pairs(ws.parts) do
    parts[#parts + 1] = part
    parts[#parts + 1] = whole(number)
  end
  if #parts > 0 then redis.call('HSET', scope .. ':ws:parts', unpack(parts)) end
  redis.call('HSET', op_key, ws.op, cmsgpack.pack({ws.rev, unpack(answer)}))
  redis.call('PEXPIRE', op_key, whole(ws.window_ms * 2), 'NX')
  if ws.outdated then redis.call('UNLINK', scope .. ':op:' .. ws.outdated) end
  for _, key in ipairs(ws.keys) do
    if ws.moved then
      redis.call('PEXPIREAT', key, whole(ws.dies))
    else
      redis.call('PEXPIREAT', key, whole(ws.dies), 'NX')
    end
  end
  return {'ok', ws.rev, unpack(answer)}
end
