#!lua flags=no-writes
-- Reads slots and entries of up to 500 agents.
-- returns: per agent: slots (or nothing), skills, unread entries, entries that workers have read, parked tasks
-- repeat: reads again
local pool = KEYS[1]                  -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1]) -- rows: agent

local answers = {}
for i = 1, #rows do
  local agent = rows[i].agent
  local inbox_key = pool .. ':inbox:' .. agent
  local spec = redis.call('HMGET', pool .. ':agent:' .. agent, 'slots', 'skills')
  local entries, read = redis.call('XLEN', inbox_key), 0
  -- All entries that workers have read are pending: a finished one is deleted.
  local group = entries > 0 and redis.call('XINFO', 'GROUPS', inbox_key)[1]
  if group then
    for j = 1, #group, 2 do
      if group[j] == 'pending' then read = group[j + 1] end
    end
  end
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = spec.slots or '', spec.skills or '', math.max(0, entries - read)
  answers[n + 4], answers[n + 5] = read, redis.call('ZCARD', pool .. ':parked:' .. agent)
end
return answers
