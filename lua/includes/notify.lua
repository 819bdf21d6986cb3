-- Wakes supervisors, workers and followers.
--@include format: read_floor

-- Adds an entry to a stream of hints, of which about `most` stay. A client may have added one with the highest id, behind
-- which no other fits: the stream begins anew.
local function add_hint(stream_key, most, ...)
  local entry = redis.pcall('XADD', stream_key, 'MAXLEN', '~', most, '*', ...)
  if type(entry) == 'string' then return end
  if string.find(entry.err, 'exhausted', 1, true) then redis.call('UNLINK', stream_key) end
  redis.call('XADD', stream_key, 'MAXLEN', '~', most, '*', ...)
end

-- Adds an entry to the doorbell, the stream that wakes supervisors. A lost entry costs one sweep and no task, so a key of
-- another type, which each client can write, fails no script. With agents, blank-separated, `what` tells programs that do not
-- read the second field to check all.
local function notify_supervisor(pool, what, agent)
  if agent then
    pcall(add_hint, pool .. ':doorbell', 1000, 'w', what, 'a', agent)
  else
    pcall(add_hint, pool .. ':doorbell', 1000, 'w', what)
  end
end

-- Clears the mark of an agent whose inbox has room again (protocol rule 6); returns whether it has. A mark at one entry stays
-- until `assign` leaves no task behind: the inbox is empty, so that nothing notifies again before. A client that cancels an
-- unread task may not change agents: the mark stays, and further cancels notify, too.
local function clear_mark(pool, agent)
  local agent_key = pool .. ':agent:' .. agent
  local mark = redis.call('HGET', agent_key, 'mark')
  if not mark or redis.call('XLEN', pool .. ':inbox:' .. agent) >= (tonumber(mark) or math.huge) then return false end
  if mark ~= '1' and redis.acl_check_cmd('HDEL', agent_key, 'mark') then redis.call('HDEL', agent_key, 'mark') end
  return true
end

-- Clears the mark of an agent whose inbox has room again, and notifies supervisors.
local function notify_of_room(pool, agent)
  if clear_mark(pool, agent) then notify_supervisor(pool, 'agent:' .. agent) end
end

-- Notifies supervisors of agents with room: of 50 with one entry, if all programs of the pool read such entries.
local function notify_of_rooms(pool, agents)
  if (tonumber(read_floor(pool)) or 0) >= 3 then
    for i = 1, #agents, 50 do
      notify_supervisor(pool, 'agents', table.concat(agents, ' ', i, math.min(i + 49, #agents)))
    end
  else
    for i = 1, #agents do notify_supervisor(pool, 'agent:' .. agents[i]) end
  end
end

-- Adds a note for one worker, which reads it at once. A lost note costs time only: its content is stored elsewhere, and
-- the worker reads it at its next heartbeat.
local function notify_worker(pool, worker, kind, id, generation)
  local notes_key = pool .. ':worker:' .. worker .. ':notes'
  add_hint(notes_key, 1000, 'k', kind, 't', id, 'g', generation)
  redis.call('EXPIRE', notes_key, 60)
end

-- Tells the workers of an agent that suspects wait. Of many workers only some are told; the rest ask at intervals.
local function notify_of_suspects(pool, agent)
  local workers = redis.call('HKEYS', pool .. ':agent:' .. agent .. ':workers')
  for i = 1, math.min(#workers, 100) do notify_worker(pool, workers[i], 'suspects', '', '') end
end

-- Publishes that a task's output stream has grown. Followers also poll, so that a user without the right to publish
-- loses time and the script does not fail halfway.
local function publish_hint(out_key, entry)
  if redis.acl_check_cmd('SPUBLISH', out_key, entry) then redis.call('SPUBLISH', out_key, entry) end
end
