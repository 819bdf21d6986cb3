-- Inboxes: the streams that the workers of an agent read.
--@include key: has_type
--@include notify: notify_supervisor, clear_mark, notify_of_room, notify_of_rooms
--@include record: forgiven_failures
--@include output: append_event

-- Adds an attempt to an agent's inbox and assigns its task in a new generation (protocol rule 1). `task` has fails,
-- deaths, requeued and out as the record has them. Returns the bytes of the envelope in the entry; the worker reads a
-- larger one from the record.
local function put_entry(pool, agent, id, score, generation, envelope, task)
  local inbox_key = pool .. ':inbox:' .. agent
  if #envelope > 16384 then envelope = '' end
  local deaths = tonumber(task.deaths or 0)
  local attempt = tonumber(task.fails or 0) + deaths + 1
  local entry
  if attempt == 1 then
    entry = redis.call('XADD', inbox_key, '*', 't', id, 'g', generation, 'e', envelope)
  elseif task.requeued then
    local fails = forgiven_failures(task.requeued)
    -- Last, so that older workers, which do not know the field, read the rest.
    entry = redis.call('XADD', inbox_key, '*', 't', id, 'g', generation, 'a', attempt, 'd', deaths, 'e', envelope,
      'f', fails)
  else
    entry = redis.call('XADD', inbox_key, '*', 't', id, 'g', generation, 'a', attempt, 'd', deaths, 'e', envelope)
  end
  redis.call('HSET', pool .. ':task:' .. id, 'state', 'assigned', 'gen', generation, 'at', agent .. ' ' .. entry .. ' ' .. score)
  if task.out then append_event(pool, id, generation, attempt, 'assigned', agent) end
  return #envelope
end

-- Returns the task of an inbox entry; '' when the entry is gone.
local function task_of_entry(inbox_key, entry)
  --@rows read: entry fields
  local read = redis.call('XRANGE', inbox_key, entry, entry)
  -- The first field of an entry is `t`, the task.
  return read[1] and read[1].fields[2] or ''
end

-- Returns the worker that has read an inbox entry, or nil. `grouped` caches which inboxes have their group.
local function pending_worker(pool, grouped, agent, entry)
  local inbox_key = pool .. ':inbox:' .. agent
  if grouped[agent] == nil then
    grouped[agent] = redis.call('EXISTS', inbox_key) == 1 and #redis.call('XINFO', 'GROUPS', inbox_key) > 0
  end
  --@row pending: entry worker
  local pending = grouped[agent] and redis.call('XPENDING', inbox_key, 'workers', entry, entry, 1)[1]
  return pending and pending.worker
end

-- Returns whether a worker has an inbox entry or will read it, and whether the stream holds the entry at all. An entry
-- that was read but is not pending will never be read again. `inboxes` caches the groups.
local function is_reachable(pool, known, inboxes, agent, entry, id)
  local inbox_key = pool .. ':inbox:' .. agent
  if not has_type(known, inbox_key, 'stream') or known[inbox_key] == 'none' then return false, false end
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
  --@row stored: entry fields
  local stored = redis.call('XRANGE', inbox_key, entry, entry)[1]
  if not stored or stored.fields[2] ~= id then return false, false end
  -- Without its group the stream is read from the beginning (protocol rule 27).
  if not inbox.read_up_to then return true, true end
  local ms, number = string.match(entry, '^(%d+)-(%d+)$')
  local read_ms, read_number = string.match(inbox.read_up_to, '^(%d+)-(%d+)$')
  ms, number, read_ms, read_number = tonumber(ms), tonumber(number), tonumber(read_ms), tonumber(read_number)
  return ms > read_ms or (ms == read_ms and number > read_number), true
end

-- Removes entries from an agent's inbox, delivered or not.
local function take_out_entries(pool, agent, entries)
  local inbox_key = pool .. ':inbox:' .. agent
  if redis.REDIS_VERSION_NUM >= 0x00080200 then
    local gone = redis.call('XACKDEL', inbox_key, 'workers', 'IDS', #entries, unpack(entries))
    for i = 1, #gone do
      -- XACKDEL keeps entries that were never delivered.
      if gone[i] == -1 then redis.call('XDEL', inbox_key, entries[i]) end
    end
  else
    redis.call('XACK', inbox_key, 'workers', unpack(entries))
    redis.call('XDEL', inbox_key, unpack(entries))
  end
end

-- Removes entries from an agent's inbox, and notifies supervisors if tasks wait for the room.
local function remove_entries(pool, agent, entries)
  take_out_entries(pool, agent, entries)
  notify_of_room(pool, agent)
end

-- Removes entries from the inboxes of several agents: `entries` has a list for each. Notifies supervisors once of many.
local function remove_from_inboxes(pool, entries)
  local freed = {}
  for agent, ids in pairs(entries) do
    take_out_entries(pool, agent, ids)
    if clear_mark(pool, agent) then freed[#freed + 1] = agent end
  end
  if #freed == 1 then
    notify_supervisor(pool, 'agent:' .. freed[1])
  elseif #freed > 1 then
    notify_of_rooms(pool, freed)
  end
end
