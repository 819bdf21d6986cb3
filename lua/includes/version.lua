-- Versions of skills: the arguments that their handlers declare (protocol rule 28).
--@include time: integer
--@include key: has_type

-- Returns the scope of the tasks of a queue whose arguments some versions refused. `refused` joins their digests.
local function version_scope(refused, queue)
  return 'version:' .. refused .. ':' .. queue
end

-- Returns the digests and the queue of such a scope; nil for the scope of a stop.
local function parse_version_scope(scope)
  return string.match(scope, '^version:([^:]+):(.*)$')
end

-- Lists a scope among those of versions that hold tasks; returns whether it was not listed.
local function list_version_scope(pool, scope, now_ms)
  return redis.call('ZADD', pool .. ':refused', 'NX', integer(now_ms), scope) == 1
end

-- Removes a scope that holds no task from the lists of scopes. A client may have written keys of another type.
local function unlist_scope(pool, scope)
  local held_key, refused_key = pool .. ':held', pool .. ':refused'
  if has_type({}, held_key, 'set') then redis.call('SREM', held_key, scope) end
  if has_type({}, refused_key, 'zset') then redis.call('ZREM', refused_key, scope) end
end

-- Returns whether one of the versions in `refused` is in the set `digests`.
local function any_refuses(refused, digests)
  for digest in string.gmatch(refused, '[^+]+') do
    if digests[digest] then return true end
  end
  return false
end

-- Adds a version to those that refused a task, in the order of their digests.
local function add_version(refused, digest)
  local digests = {digest}
  for known in string.gmatch(refused or '', '[^+]+') do
    if known ~= digest then digests[#digests + 1] = known end
  end
  table.sort(digests)
  return table.concat(digests, '+')
end

-- Returns the set of the versions that live workers of an agent have, by digest.
local function live_versions(pool, agent)
  local digests = {}
  for digest in string.gmatch(redis.call('HGET', pool .. ':agent:' .. agent, 'versions') or '', '=(%S+)') do
    digests[digest] = true
  end
  return digests
end

-- Returns whether arguments with these names may fit a version; without `names`, any version may.
local function may_take(arguments, names)
  if not names then return true end
  local given, required, optional = {}, {}, {}
  for argument in string.gmatch(arguments, '%S+') do
    local name = string.match(argument, '^(.*)%?$')
    if name then optional[name] = true else required[argument] = true end
  end
  for i = 1, #names do
    if not required[names[i]] and not optional[names[i]] then return false end
    given[names[i]] = true
  end
  for name in pairs(required) do
    if not given[name] then return false end
  end
  return true
end

-- Returns whether a task waits for another version of its skill than those that refused it: for one that a live worker
-- has, or for a newer one than these that is not forgotten. `agent` limits the search to the agent that the task is
-- addressed to, `names` to versions that take arguments with these names.
local function awaits_version(pool, skill, agent, refused, names)
  local refusing, born, others, newest = {}, {}, {}, 0
  for digest in string.gmatch(refused, '[^+]+') do refusing[digest] = true end
  local versions_key = pool .. ':versions:' .. skill
  local versions, facts = redis.call('HKEYS', versions_key), redis.call('HVALS', versions_key)
  for i = 1, #versions do
    local owner, digest = string.match(versions[i], '^(%S+) (%S+)$')
    local since, arguments = string.match(facts[i], '^(%d+) ?(.*)$')
    if since and owner and (not agent or agent == owner) then
      since = tonumber(since)
      if refusing[digest] then
        born[digest] = math.min(born[digest] or since, since)
      elseif may_take(arguments, names) then
        others[#others + 1] = {since, owner .. ' ' .. skill .. '=' .. digest}
      end
    end
  end
  for _, since in pairs(born) do newest = math.max(newest, since) end
  --@rows others: since version
  for i = 1, #others do
    if others[i].since > newest or not redis.call('ZSCORE', pool .. ':versions', others[i].version) then return true end
  end
  return false
end
