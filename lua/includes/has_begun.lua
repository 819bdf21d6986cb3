-- Whether some attempt of a task has begun, as far as anybody knows: a worker has it, or an earlier attempt left it.
--@include reader
local function has_begun(pool, cancelling, id)
  local found = redis.call('HMGET', pool .. ':task:' .. id, 'state', 'at', 'was', 'fails', 'deaths')
  if found[3] or found[4] or found[5] then return true end
  if found[1] ~= 'assigned' then return false end
  local agent, entry = string.match(found[2], '^(%S+) (%S+)')
  return reader(pool, cancelling.grouped, agent, entry)
end
