-- Remove entries from an agent's inbox, delivered or not, and ring if somebody waits for the room.
--@include notify_supervisor
local function remove_entries(pool, agent, entries)
  local inbox_key = pool .. ':inbox:' .. agent
  if redis.REDIS_VERSION_NUM >= 0x00080200 then
    local gone = redis.call('XACKDEL', inbox_key, 'workers', 'IDS', #entries, unpack(entries))
    for i = 1, #gone do
      -- XACKDEL leaves entries that were never delivered.
      if gone[i] == -1 then redis.call('XDEL', inbox_key, entries[i]) end
    end
  else
    redis.call('XACK', inbox_key, 'workers', unpack(entries))
    redis.call('XDEL', inbox_key, unpack(entries))
  end
  local agent_key = pool .. ':agent:' .. agent
  local mark = redis.call('HGET', agent_key, 'mark')
  if mark and redis.call('XLEN', inbox_key) < tonumber(mark) then
    redis.call('HDEL', agent_key, 'mark')
    notify_supervisor(pool, 'agent:' .. agent)
  end
end
