-- Joins: a task waits without a slot until tasks have ended (protocol rule 37). `joins:ID` has those of its tasks that have
-- not ended, and each of them names its parents in `joined`.
--@include time: day_s, integer
--@include envelope: skill_queue
--@include record: read_task, has_ended, rank_of, attempt_number
--@include notify: notify_supervisor
--@include output: append_event
--@include share: ready_place

-- Parents that one call makes ready; `promote` makes the others ready.
local most_joined = 500

-- Returns the join that a task has registered, as text: generation, number, how many of its tasks may be left when it is
-- met, 1 if the first failure of a task meets it, and the seconds for which the parent is kept; nil for none.
local function parse_join(stored)
  return string.match(stored or '', '^(%d+) (%d+) (%d+) ([01]) (%d+)$')
end

-- Returns whether enough tasks of a join have ended. A list of another type, which a client may have written, counts as lost.
local function is_met(pool, parent, left)
  local joins_key = pool .. ':joins:' .. parent
  return redis.call('TYPE', joins_key)['ok'] ~= 'zset' or redis.call('ZCARD', joins_key) <= tonumber(left)
end

-- Returns whether a task has not ended, and is in the join of this parent.
local function is_in_join(pool, parent, id)
  local joins_key = pool .. ':joins:' .. parent
  return redis.call('TYPE', joins_key)['ok'] == 'zset' and redis.call('ZSCORE', joins_key, id)
end

-- Returns for how long ended tasks must be kept for a parent whose next attempt may look for them; nil if it has none.
local function kept_for(pool, parent)
  local parent_key = pool .. ':task:' .. parent
  if redis.call('TYPE', parent_key)['ok'] ~= 'hash' then return nil end
  local task = read_task(parent_key, 'state', 'join')
  if not task.state or has_ended(task.state) then return nil end
  local _, _, _, _, keep_s = parse_join(task.join)
  return tonumber(keep_s or 0) + day_s
end

-- Returns the place of a task whose join is over, and its score there, which is its original one. The caller stores that
-- the task is ready.
local function joined_place(parent, task, now_ms)
  --@row task: queue rank env at fair
  local score = string.match(task.at or '', ' (%d+)$') or integer(rank_of(task.rank) + now_ms)
  return ready_place(task.queue or skill_queue(task.env or ''), task.fair, task.rank), score
end

-- Collects an ended task for its parents and followers: `joined` names the parents. Returns the lifetime of its record, so that
-- those that have not ended find it.
local function leave_joins(pool, ending, id, joined, state, ttl_s)
  local failed, keep_s = state ~= 'succeeded', string.match(joined, '%+(%d+)')
  if keep_s then
    ending.followed = ending.followed or {}
    table.insert(ending.followed, {id, state, 1, tonumber(keep_s)})
    ttl_s = math.max(ttl_s, tonumber(keep_s))
  end
  ending.joins = ending.joins or {}
  for parent in string.gmatch(joined, '%x+%-[%x-]+') do
    local ends = ending.joins[parent]
    if not ends then
      ends = {succeeded = {}, failed = {}, keep_s = kept_for(pool, parent) or 0}
      ending.joins[parent] = ends
    end
    local ids = failed and ends.failed or ends.succeeded
    ids[#ids + 1] = id
    ttl_s = math.max(ttl_s, ends.keep_s)
  end
  return ttl_s
end

-- Removes ended tasks from the join of a parent. Returns how many were in it.
local function remove_joined(pool, parent, ids)
  local joins_key, removed = pool .. ':joins:' .. parent, 0
  if #ids == 0 or redis.call('TYPE', joins_key)['ok'] ~= 'zset' then return 0 end
  for first = 1, #ids, 1000 do
    removed = removed + redis.call('ZREM', joins_key, unpack(ids, first, math.min(first + 999, #ids)))
  end
  return removed
end

-- Makes a parent ready whose join is over: collects it in `ending.turns`.
local function end_join(pool, ending, parent, keep_s, told)
  local task_key = pool .. ':task:' .. parent
  local task = read_task(task_key, 'queue', 'rank', 'env', 'at', 'fair')
  local more = read_task(task_key, 'idem', 'out', 'gen', 'fails', 'deaths')
  local place, score = joined_place(parent, task, math.floor(ending.now / 1000))
  redis.call('HSET', task_key, 'state', 'ready')
  redis.call('EXPIRE', task_key, keep_s)
  if more.idem then redis.call('EXPIRE', pool .. ':idem:' .. more.idem, keep_s) end
  redis.call('ZREM', pool .. ':joining', parent)
  redis.call('UNLINK', pool .. ':joins:' .. parent)
  ending.turns[parent] = {place = place, score = score}
  ending.counts[told] = (ending.counts[told] or 0) + 1
  if more.out then append_event(pool, parent, more.gen, attempt_number(more.fails, more.deaths), told, '') end
end

-- Notes for a join that a task has failed, if the first failure meets it. Returns the stored join.
local function note_failure(pool, parent, generation, stored)
  local registered, number, _, stop, keep_s = parse_join(stored)
  if stop ~= '1' or (generation and registered ~= generation) then return stored end
  stored = registered .. ' ' .. number .. ' 10000 1 ' .. keep_s
  redis.call('HSET', pool .. ':task:' .. parent, 'join', stored)
  return stored
end

-- The same for a parent at which `promote` looks.
local function look_at_failure(pool, parent)
  local task_key = pool .. ':task:' .. parent
  if redis.call('TYPE', task_key)['ok'] ~= 'hash' then return end
  local task = read_task(task_key, 'state', 'gen', 'join')
  if task.state == 'joining' or task.state == 'assigned' then
    note_failure(pool, parent, task.state == 'assigned' and task.gen, task.join)
  end
end

-- Looks at a parent after tasks of its join have ended, and makes it ready if the join is met. A parent whose attempt still
-- registers its tasks goes on.
local function look_at_join(pool, ending, parent, failed)
  local task_key = pool .. ':task:' .. parent
  if redis.call('TYPE', task_key)['ok'] ~= 'hash' then return end
  local task = read_task(task_key, 'state', 'gen', 'join')
  if task.state ~= 'joining' and task.state ~= 'assigned' then return end
  local stored = task.join
  if failed then stored = note_failure(pool, parent, task.state == 'assigned' and task.gen, stored) end
  if task.state ~= 'joining' then return end
  local _, _, left, _, keep_s = parse_join(stored)
  if not left or is_met(pool, parent, left) then end_join(pool, ending, parent, keep_s or day_s, 'joined') end
end

-- Removes the tasks that ended in this call from their joins.
local function flush_joins(pool, ending)
  local looked, rest = 0, {}
  for parent, ends in pairs(ending.joins) do
    local failed = remove_joined(pool, parent, ends.failed)
    if remove_joined(pool, parent, ends.succeeded) + failed > 0 then
      looked = looked + 1
      if looked <= most_joined then
        look_at_join(pool, ending, parent, failed > 0)
      else
        -- `promote` looks at it, because it is due.
        if failed > 0 then look_at_failure(pool, parent) end
        rest[#rest + 1] = integer(math.floor(ending.now / 1000))
        rest[#rest + 1] = parent
      end
    end
  end
  ending.joins = nil
  for first = 1, #rest, 1000 do
    redis.call('ZADD', pool .. ':joining', 'XX', unpack(rest, first, math.min(first + 999, #rest)))
  end
  if #rest > 0 then notify_supervisor(pool, 'scheduled') end
end
