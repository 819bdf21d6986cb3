-- Whether an inbox entry is where a worker has it or will read it. Answers also whether the stream holds it at all, for
-- one that nobody will ever read: it lies behind what was read, and in nobody's hands. `inboxes` remembers their groups.
--@include usable
local function reachable(pool, known, inboxes, agent, entry, id)
  local inbox_key = pool .. ':inbox:' .. agent
  if not usable(known, inbox_key, 'stream') or known[inbox_key] == 'none' then return false, false end
  local inbox = inboxes[agent]
  if not inbox then
    inbox = {}
    local groups = redis.call('XINFO', 'GROUPS', inbox_key)
    for i = 1, #groups do
      local facts = {}
      for j = 1, #groups[i], 2 do facts[groups[i][j]] = groups[i][j + 1] end
      if facts.name == 'workers' then inbox.read_up_to = facts['last-delivered-id'] end
    end
    inboxes[agent] = inbox
  end
  if inbox.read_up_to and #redis.call('XPENDING', inbox_key, 'workers', entry, entry, 1) > 0 then return true, true end
  local lies = redis.call('XRANGE', inbox_key, entry, entry)[1]
  if not lies or lies[2][2] ~= id then return false, false end
  -- Without its group it will be read from the beginning (protocol rule 27).
  if not inbox.read_up_to then return true, true end
  local ms, number = string.match(entry, '^(%d+)-(%d+)$')
  local read_ms, read_number = string.match(inbox.read_up_to, '^(%d+)-(%d+)$')
  ms, number, read_ms, read_number = tonumber(ms), tonumber(number), tonumber(read_ms), tonumber(read_number)
  return ms > read_ms or (ms == read_ms and number > read_number), true
end
