#!lua
-- Registers tasks that an attempt joins: up to 500 rows. `finish` makes the task wait for them with the verdict `join`
-- (protocol rule 37). A join of more tasks takes several calls; the first one drops what an earlier attempt has registered.
-- The calls `earlier` name the tasks of earlier joins of the attempt: they are kept as long, because the next attempt reads them again.
-- With `met` the call stores instead how the join was met, so that later attempts find the same.
-- Refuses a task that waits for the parent, because neither could go on: the parent itself, one that joins or awaits it,
-- directly or over others, one above it, and one of the lane of such a task.
-- status: registered | stored (with `met`) | stale (the attempt lost its task) | cycle id | crowded id (too many tasks join it) | unknown id (more
-- tasks wait for the parent than the call looks at, so that it cannot tell whether that task does)
-- returns: status and the value named above; for `registered` the number of looked rows (send the rest again) and of those
-- that have not ended. A refusal changes nothing
-- repeat: registers or stores the same again
local pool       = KEYS[1]                   -- key: root of the pool's slot
local id         = ARGV[1]                   -- str: task
local generation = ARGV[2]                   -- str: generation of the attempt
local rows       = cmsgpack.unpack(ARGV[3])  -- rows: id
local part       = ARGV[4]                   -- str: first, more or earlier
local number     = tonumber(ARGV[5])         -- int: number of the join, from 1
local left       = tonumber(ARGV[6])         -- int: tasks that may be left when the join is met
local stop       = ARGV[7]                   -- str: 1: the first failure of a task meets it, else 0
local keep_s     = tonumber(ARGV[8])         -- int: lifetime of a task that waits
local most       = tonumber(ARGV[9])         -- int: tasks that may join one task (20)
local met        = ARGV[10]                  -- str: digest of the joined ids, and the task whose failure met the join (else -); empty: register
--@include time: day_s, integer
--@include envelope: parent_of
--@include record: read_task, has_ended
--@include join: note_failure, is_in_join

local look_at, call_bytes, search_bytes = 500, 1048576, 4194304
local task_key, joins_key = pool .. ':task:' .. id, pool .. ':joins:' .. id
local parent = read_task(task_key, 'state', 'gen', 'lane')
if parent.state ~= 'assigned' or parent.gen ~= generation then return {'stale'} end
if met ~= '' then
  local name = 'join:' .. integer(number)
  -- 0 0: no attempt has waited for it.
  local began = string.match(redis.call('HGET', task_key, name) or '', '^%d+ %d+') or '0 0'
  redis.call('HSET', task_key, name, began .. ' met ' .. met)
  return {'stored'}
end
-- A list of another type, which a client may have written, is lost.
local is_list = redis.call('TYPE', joins_key)['ok'] == 'zset'

-- Returns whether a task of a flow waits for a predecessor.
local function follows(follower, predecessor)
  local after_key = pool .. ':after:' .. follower
  return redis.call('TYPE', after_key)['ok'] == 'zset' and redis.call('ZSCORE', after_key, predecessor)
end

local dependents
-- Returns the tasks that wait for the parent, as a set, and their lanes: the parent, those that join or follow one of them, those
-- above one of them, because they may join it any time, and those in the lane of one of them. nil: they are too many.
local function find_dependents()
  if dependents then return dependents, dependents.lanes end
  local found, lanes, stack, looked, read = {[id] = true}, {}, {id}, 0, 0
  local function add(other)
    if not found[other] then
      found[other] = true
      stack[#stack + 1] = other
    end
  end
  while #stack > 0 do
    local other = stack[#stack]
    stack[#stack] = nil
    looked = looked + 1
    local task = read_task(pool .. ':task:' .. other, 'state', 'env', 'joined', 'lane')
    if task.state and not has_ended(task.state) then
      read = read + #(task.env or '')
      local above = parent_of(task.env or '')
      if above then add(above) end
      for joiner in string.gmatch(task.joined or '', '%x+%-[%x-]+') do
        looked = looked + 1
        if is_in_join(pool, joiner, other) then add(joiner) end
      end
      local followers = string.find(task.joined or '', '+', 1, true) and redis.call('HGET', pool .. ':task:' .. other, 'followers') or ''
      for follower in string.gmatch(followers, '%S+') do
        looked = looked + 1
        if follows(follower, other) then add(follower) end
      end
      if task.lane and not lanes[task.lane] then
        lanes[task.lane] = true
        local members = redis.call('ZRANGE', pool .. ':lane:' .. task.lane, 0, look_at)
        for i = 1, #members do add(members[i]) end
      end
    end
    if looked > look_at or read > search_bytes then return nil end
  end
  dependents = found
  dependents.lanes = lanes
  return found, lanes
end

local walked, most_walked = 0, 1000
local before = {}
-- Returns the lanes of the tasks that must end before a task of a flow starts; each task is looked at once per call.
local function lanes_before(child_id)
  local lanes, stack = {}, {child_id}
  while #stack > 0 and walked < most_walked do
    local after_key = pool .. ':after:' .. table.remove(stack)
    local others = redis.call('TYPE', after_key)['ok'] == 'zset' and redis.call('ZRANGE', after_key, 0, look_at) or {}
    for i = 1, #others do
      local other = others[i]
      if not before[other] and walked < most_walked then
        before[other] = true
        walked = walked + 1
        local task = read_task(pool .. ':task:' .. other, 'state', 'lane')
        if task.lane then lanes[#lanes + 1] = task.lane end
        if task.state == 'awaiting_tasks' then stack[#stack + 1] = other end
      end
    end
  end
  return lanes
end

-- Returns why the parent cannot join a task that has not ended, or nil.
local function obstacle(child_id, child)
  --@row child: state env joined lane awaits idem
  if child_id == id then return 'cycle' end
  local generation_of, awaited = string.match(child.awaits or '', '^(%d+) (.*)$')
  if generation_of and string.find(' ' .. awaited .. ' ', ' ' .. id .. ' ', 1, true)
    and child.state == 'assigned' and redis.call('HGET', pool .. ':task:' .. child_id, 'gen') == generation_of then
    return 'cycle'
  end
  -- A task that the parent has submitted waits for it only over its lane, those of the tasks before it in its flow, or over a task
  -- that it joins: that join finds the parent above it.
  local ahead = child.state == 'awaiting_tasks' and lanes_before(child_id) or {}
  if parent_of(child.env or '') == id and not child.lane and #ahead == 0 then return nil end
  local found, lanes = find_dependents()
  if not found then return 'unknown' end
  for i = 1, #ahead do
    if lanes[ahead[i]] then return 'cycle' end
  end
  return (found[child_id] or (child.lane and lanes[child.lane])) and 'cycle' or nil
end

-- Returns the parents of a task with this one; false if they are too many. Drops those that have gone on.
local function with_parent(child_id, joined)
  if not joined then return id end
  if string.find(' ' .. joined .. ' ', ' ' .. id .. ' ', 1, true) then return joined end
  local kept = {}
  for other in string.gmatch(joined, '%x+%-[%x-]+') do
    if is_in_join(pool, other, child_id) then kept[#kept + 1] = other end
  end
  if #kept >= most then return false end
  kept[#kept + 1] = id
  -- It has followers.
  kept[#kept + 1] = string.match(joined, '%+%d+')
  return table.concat(kept, ' ')
end

-- Returns the same for a task that has ended: all of its parents may read it again. Returns nil if it names this one, or is full.
local function with_parent_of_ended(joined)
  if not joined then return id end
  local _, others = string.gsub(joined, '%x+%-[%x-]+', '')
  if others >= most or string.find(' ' .. joined .. ' ', ' ' .. id .. ' ', 1, true) then return nil end
  return joined .. ' ' .. id
end

local scored, parents, ended, any_failed = {}, {}, {}, false
local bytes, looked = 0, 0
for i = 1, #rows do
  if bytes >= call_bytes then break end
  local child_id = rows[i].id
  local child = read_task(pool .. ':task:' .. child_id, 'state', 'env', 'joined', 'lane', 'awaits', 'idem')
  bytes, looked = bytes + #(child.env or ''), i
  if not child.state or has_ended(child.state) then
    any_failed = any_failed or (part ~= 'earlier' and child.state ~= 'succeeded')
    if child.state then ended[#ended + 1] = {child_id, child.idem or false, with_parent_of_ended(child.joined)} end
  elseif part ~= 'earlier' then
    local why = obstacle(child_id, child)
    if why then return {why, child_id} end
    local joined = with_parent(child_id, child.joined)
    if not joined then return {'crowded', child_id} end
    if joined ~= child.joined then parents[#parents + 1] = {child_id, joined} end
    scored[#scored + 1], scored[#scored + 2] = integer(i), child_id
  end
end

if part == 'first' or (part == 'more' and not is_list) then redis.call('UNLINK', joins_key) end
if part == 'first' then
  redis.call('HSET', task_key, 'join', generation .. ' ' .. integer(number) .. ' ' .. integer(left) .. ' ' .. stop .. ' ' .. integer(keep_s))
end
for i = 1, #parents do redis.call('HSET', pool .. ':task:' .. parents[i][1], 'joined', parents[i][2]) end
if #scored > 0 then
  redis.call('ZADD', joins_key, unpack(scored))
  redis.call('EXPIRE', joins_key, integer(keep_s + day_s))
end
-- The next attempt reads them.
for i = 1, #ended do
  --@row one: id idem joined
  local one = ended[i]
  if one.joined then redis.call('HSET', pool .. ':task:' .. one.id, 'joined', one.joined) end
  redis.call('EXPIRE', pool .. ':task:' .. one.id, integer(keep_s + day_s), 'GT')
  if one.idem then redis.call('EXPIRE', pool .. ':idem:' .. one.idem, integer(keep_s + day_s), 'GT') end
end
if any_failed then note_failure(pool, id, generation, redis.call('HGET', task_key, 'join')) end
return {'registered', looked, #scored / 2}
