#!lua flags=no-writes
-- Reads slots and entries of up to 250 agents.
-- returns: per agent: slots (or nothing), skills, unread entries, entries that workers have read, parked tasks
-- repeat: reads again
local pool = KEYS[1]                  -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1]) -- rows: agent

local parked_keys = {}
for i = 1, #rows do parked_keys[i] = pool .. ':parked:' .. rows[i].agent end
-- One call for all agents, because tasks are rarely parked.
local any_parked = #rows > 0 and redis.call('EXISTS', unpack(parked_keys)) > 0

-- Returns how many entries of an inbox workers have read. These are pending, because a finished entry is deleted.
local function count_read(inbox_key)
  local group = redis.call('XINFO', 'GROUPS', inbox_key)[1] or {}
  for i = 1, #group, 2 do
    if group[i] == 'pending' then return group[i + 1] end
  end
  return 0
end

local answers = {}
for i = 1, #rows do
  local agent = rows[i].agent
  local inbox_key = pool .. ':inbox:' .. agent
  local spec = redis.call('HMGET', pool .. ':agent:' .. agent, 'slots', 'skills')
  local entries = redis.call('XLEN', inbox_key)
  local read = entries > 0 and count_read(inbox_key) or 0
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = spec.slots or '', spec.skills or '', math.max(0, entries - read)
  answers[n + 4], answers[n + 5] = read, any_parked and redis.call('ZCARD', pool .. ':parked:' .. agent) or 0
end
return answers
