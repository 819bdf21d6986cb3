-- Slots that an agent lends while parents wait for their children (protocol rule 32).
--@include time: day_s, integer
--@include record: read_task
--@include share: flow_of

-- Replaces the statement of a worker about one agent: `counts` is a text `depth=number ...` of the parents that wait
-- there, '' for none. Adds the difference to the sums of the agent. Returns whether the statement has changed.
local function state_lent(pool, agent, worker, counts)
  local worker_key, lent_key, field = pool .. ':worker:' .. worker, pool .. ':lent:' .. agent, 'lent:' .. agent
  local before = redis.call('HGET', worker_key, field) or ''
  if before == counts then return false end
  local change = {}
  for depth, number in string.gmatch(before, '(%d+)=(%d+)') do change[depth] = -tonumber(number) end
  for depth, number in string.gmatch(counts, '(%d+)=(%d+)') do
    change[depth] = (change[depth] or 0) + tonumber(number)
  end
  for depth, difference in pairs(change) do
    if difference ~= 0 and redis.call('HINCRBY', lent_key, depth, difference) <= 0 then
      redis.call('HDEL', lent_key, depth)
    end
  end
  redis.call('EXPIRE', lent_key, day_s)
  if counts == '' then redis.call('HDEL', worker_key, field) else redis.call('HSET', worker_key, field, counts) end
  return true
end

-- Computes the sums of an agent from the statements of its workers. Returns whether they differed.
local function recount_lent(pool, agent, workers, may_write)
  local lent_key, sums, differs = pool .. ':lent:' .. agent, {}, false
  for i = 1, #workers do
    local counts = redis.call('HGET', pool .. ':worker:' .. workers[i], 'lent:' .. agent) or ''
    for depth, number in string.gmatch(counts, '(%d+)=(%d+)') do sums[depth] = (sums[depth] or 0) + tonumber(number) end
  end
  local depths = redis.call('HKEYS', lent_key)
  for i = 1, #depths do
    if not sums[depths[i]] then
      differs = true
      if may_write then redis.call('HDEL', lent_key, depths[i]) end
    end
  end
  for depth, number in pairs(sums) do
    if tonumber(redis.call('HGET', lent_key, depth) or nil) ~= number then
      differs = true
      if may_write then
        redis.call('HSET', lent_key, depth, integer(number))
        redis.call('EXPIRE', lent_key, day_s)
      end
    end
  end
  return differs
end

-- Returns the depths at which parents of an agent wait, and how many of them; nil if none does.
local function lent_slots(pool, agent)
  local depths = redis.call('HKEYS', pool .. ':lent:' .. agent)
  if #depths == 0 then return nil end
  return {depths = depths, numbers = redis.call('HVALS', pool .. ':lent:' .. agent)}
end

-- Returns how many of these slots are lent to a task of a depth: those of parents above it. So an agent holds at most as
-- many entries of one depth as it has places for tasks without parents.
local function lent_to(lent, depth)
  local number = 0
  for i = 1, #lent.depths do
    if tonumber(lent.depths[i]) < depth then number = number + tonumber(lent.numbers[i]) end
  end
  return number
end

-- Returns the score of a ready task in its queue, or among the waiting tasks of its key; nil if it is in neither.
local function waiting_score(pool, queue, id)
  local score = redis.call('ZSCORE', pool .. ':queue:' .. queue, id)
  if score then return score end
  local task = read_task(pool .. ':task:' .. id, 'state', 'fair', 'rank')
  if task.state ~= 'ready' or not task.fair then return nil end
  return redis.call('ZSCORE', pool .. ':share:wait:' .. flow_of(queue, task.fair, task.rank), id)
end

-- Returns awaited tasks of these queues that fit into lent slots, deepest first: a flat list id, score, place ...; whether
-- more are left; and how many it has looked up. `places` is the room that the agent has beside its entries, without lent
-- slots. Drops tasks that are no longer in their queue from the index.
local function awaited_tasks(pool, queues, lent, places, limit)
  local found, looked = {}, 0
  for i = 1, #queues do
    local queue, gone = queues[i], {}
    local awaited_key = pool .. ':awaited:' .. queue
    local heads = redis.call('ZRANGE', awaited_key, 0, 99, 'WITHSCORES')
    for j = 1, #heads, 2 do
      local score = waiting_score(pool, queue, heads[j])
      if score then
        found[#found + 1] = {id = heads[j], depth = -tonumber(heads[j + 1]), score = score, queue = queue}
      else
        gone[#gone + 1] = heads[j]
      end
    end
    looked = looked + #heads / 2
    if #gone > 0 then redis.call('ZREM', awaited_key, unpack(gone)) end
  end
  table.sort(found, function(a, b)
    if a.depth ~= b.depth then return a.depth > b.depth end
    return a.id < b.id
  end)
  local fitting, number = {}, 0
  for i = 1, #found do
    if number >= limit or places + lent_to(lent, found[i].depth) - number <= 0 then return fitting, true, looked end
    number = number + 1
    fitting[3 * number - 2], fitting[3 * number - 1], fitting[3 * number] = found[i].id, found[i].score, 'queue:' .. found[i].queue
  end
  return fitting, false, looked
end

-- Marks an agent without room for more awaited tasks: it notifies supervisors when its inbox loses an entry (protocol rule
-- 6).
local function mark_awaited(pool, agent)
  local agent_key = pool .. ':agent:' .. agent
  local entries = redis.call('XLEN', pool .. ':inbox:' .. agent)
  if entries > (tonumber(redis.call('HGET', agent_key, 'mark') or nil) or 0) then
    redis.call('HSET', agent_key, 'mark', entries)
  end
end
