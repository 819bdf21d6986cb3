-- The worker that has read an inbox entry, or nil. `grouped` remembers which inboxes have their group.
local function reader(pool, grouped, agent, entry)
  local inbox_key = pool .. ':inbox:' .. agent
  if grouped[agent] == nil then
    grouped[agent] = redis.call('EXISTS', inbox_key) == 1 and #redis.call('XINFO', 'GROUPS', inbox_key) > 0
  end
  local pending = grouped[agent] and redis.call('XPENDING', inbox_key, 'workers', entry, entry, 1)[1]
  return pending and pending[2]
end
