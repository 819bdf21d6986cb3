#!lua flags=allow-oom
-- Checks that tasks are indexed where their records say, and nowhere else; with `repair` corrects the indexes, because
-- the record decides. Judges up to 500 rows, fewer when records are large.
-- rows: id and '' (the record) | id and an index that lists it (queue:…, scheduled, asking, joining, expiring, parked:…, held:…,
--       suspects:…, after, lane:…, joins:…, share:wait:…, share:taken:…, tag:…, dead) | id and `out` (its output stream) | '' and idem:… (an idempotency key) | '' and queue:…,
--       held:… or suspects:… (whether it is listed) | '' and share:wait:… (whether a task of it stands in the queue) | '' and lane:…, or id and `lane` (whether a task has the turn of this lane, or
--       of the task's lane; sent after all tasks were judged)
-- codes: lost-ready lost-scheduled lost-asking lost-joining lost-entry lost-deadline lost-lane lost-letter lost-tag lost-place (an index
--        misses a task) | lost-stand (no task of a key stands in the queue)
--        | lost-join (a task waits for a join that is met) | lost-parent (a task does not name a parent that joins it)
--        | lost-following (`after` misses a task) | lost-after (the list of a task's predecessors is lost) | lost-end (a predecessor that has
--        ended, or is gone, has not told a task) | lost-follower (a predecessor does not name a task behind it)
--        | lost-turn (no task of a lane has the turn) | out-of-turn (another task of the lane has the turn)
--        | misplaced (an index lists it wrongly) | gone (an index lists a task without record)
--        | damaged (a corrupt record) | unreadable (the key of a record has another type)
--        | no-lifetime | orphan-output | orphan-key | unlisted-queue | listed-empty
-- returns: number of judged rows (send the rest again), then per finding: row code repaired (1 or 0)
-- repeat: finds nothing that it has repaired
local pool       = KEYS[1]                   -- key: root of the pool's slot
local rows       = cmsgpack.unpack(ARGV[1])  -- rows: id place
local repair     = ARGV[2]                   -- str: 1 = repair what is found
local max_wait_s = tonumber(ARGV[3])         -- int: lifetime of a task that waits
local dead_ttl_s = tonumber(ARGV[4])         -- int: minimum lifetime of dead letters
local now_arg    = ARGV[5]                   -- time: test override, microseconds
--@include time: day_s, now_us, integer
--@include key: has_type
--@include notify: notify_supervisor
--@include envelope: skill_queue, parent_of
--@include tag: submitted_ms, tags_of
--@include record: read_task, has_ended, is_waiting, lifetime, rank_of, next_generation, corrupt_field
--@include desired: suspended_scopes
--@include version: parse_version_scope, list_version_scope
--@include queue: remove_from_queue, remove_suspects, notify_of_kept_slots, enqueue, leave_queue, start_waiting, flush_waiting
--@include inbox: is_reachable, remove_entries
--@include share: flow_of, ready_place, parse_flow, share_of, may_start, stand, leave_flow, take_place, free_place
--@include ending: waiting_client, start_endings, end_task, stop_waiting, tell_follower, flush_endings, index_dead
--@include follow: look_at_predecessors, leave_following, release_follower
--@include reclaim: reclaim_task, requeue_task
--@include join: parse_join, is_met, kept_for, remove_joined, look_at_join
--@rare: reclaim_task, requeue_task, tell_followers, tell_follower, release_follower, check_after, let_go, end_damaged, flush_joins, flush_budgets, free_place, wake_flows

local call_bytes, orphan_s = 1048576, 300
local record_fields = {'state', 'gen', 'at', 'queue', 'rank', 'by', 'ttl', 'idem', 'out', 'fails', 'deaths', 'due', 'ended',
  'deleted', 'lane', 'left', 'blamed', 'group', 'alone', 'session', 'fair', 'awaits', 'join', 'joined', 'after'}
local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local ending, waiting = start_endings(now), start_waiting()
local types, inboxes, tasks, leave, misplaced, lanes, flows = {}, {}, {}, {}, {}, {}, {}
local answers, bytes, repaired, cleaned = {0}, 0, 0, 0
local held_key, suspects_key = pool .. ':held', pool .. ':suspects'
local queues_key, scheduled_key, asking_key, expiring_key, dead_key =
  pool .. ':queues', pool .. ':scheduled', pool .. ':asking', pool .. ':expiring', pool .. ':dead'
local joining_key, met_joins = pool .. ':joining', {}
local following_key, told_ends, freed = pool .. ':after', {}, {}
local clean = {gone = true, ['orphan-output'] = true, ['orphan-key'] = true, ['listed-empty'] = true}

-- Nothing may fail after the first write: while a key that all repairs write has another type, nothing is repaired.
local shared = {[queues_key] = 'set', [scheduled_key] = 'zset', [asking_key] = 'zset', [joining_key] = 'zset', [following_key] = 'zset', [expiring_key] = 'zset', [dead_key] = 'zset',
  [pool .. ':doorbell'] = 'stream', [pool .. ':events'] = 'stream', [pool .. ':sessions'] = 'zset', [pool .. ':stats:TOTAL'] = 'hash',
  [pool .. ':stats:' .. integer(math.floor(now / 60000000))] = 'hash'}
local may_repair = repair == '1'
for key, type in pairs(shared) do may_repair = has_type(types, key, type) and may_repair end

local function note(row, code, done)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = row, code, done and 1 or 0
  if done and clean[code] then cleaned = cleaned + 1 elseif done then repaired = repaired + 1 end
end

local function score_in(key, id)
  return has_type(types, key, 'zset') and types[key] ~= 'none' and redis.call('ZSCORE', key, id)
end

local function is_member(key, id)
  return types[key] == 'set' and redis.call('SISMEMBER', key, id) == 1
end

local function number(text)
  return string.match(text or '', '^%d+$') and tonumber(text)
end

-- Returns whether the keys that passing the turn of a lane touches have their types.
local function sound(lane)
  local lane_key = pool .. ':lane:' .. lane
  if not has_type(types, lane_key, 'zset') then return false end
  local first = redis.call('ZRANGE', lane_key, 0, 1)
  for i = 1, #first do
    if not has_type(types, pool .. ':task:' .. first[i], 'hash') then return false end
  end
  return true
end

local function can_repair(id, task)
  if not may_repair or (task.lane and not sound(task.lane)) then return false end
  local client = waiting_client(id)
  return (not task.out or has_type(types, pool .. ':out:' .. id, 'stream'))
    and (not client or has_type(types, pool .. ':replies:' .. client, 'stream'))
end

-- Returns whether a task is a member of its lane. A task with predecessors joins behind them, a delayed one when it is due; between attempts it stays a
-- member.
local function in_lane(task)
  return (is_waiting(task.state) and task.state ~= 'awaiting_tasks' and (task.state ~= 'scheduled' or task.left)) or task.state == 'assigned'
end

local function check_lane(row, id, task)
  local lane_key = pool .. ':lane:' .. task.lane
  if not in_lane(task) or not has_type(types, lane_key, 'zset') then return end
  local rank = redis.call('ZRANK', lane_key, id)
  if not rank then
    local done = can_repair(id, task)
    if done then
      local first = redis.call('ZRANGE', lane_key, 0, 0, 'WITHSCORES')
      local ahead, score = tonumber(first[2]), math.max(number(task.gen), number(task.due) or 0) * 1000
      -- A task that is not `waiting` has the turn. The turn is not passed here, because members before this one may be
      -- missing too.
      if ahead and task.state ~= 'waiting' then
        score = ahead - 1
      elseif ahead and score <= ahead and redis.call('HGET', pool .. ':task:' .. first[1], 'state') ~= 'waiting' then
        score = ahead + 1
      end
      redis.call('ZADD', lane_key, integer(score), id)
      types[lane_key] = 'zset'
      rank = redis.call('ZRANK', lane_key, id)
    end
    note(row, 'lost-lane', done)
  end
  if rank and rank > 0 and task.state == 'ready' then
    local done = can_repair(id, task)
    if done then
      redis.call('HSET', pool .. ':task:' .. id, 'state', 'waiting')
      task.state = 'waiting'
      leave_queue(pool, task.queue, id, task.fair and flow_of(task.queue, task.fair, task.rank))
    end
    note(row, 'out-of-turn', done)
  end
end

-- Gives the turn to the first member of a lane, unless the member has it.
local function check_turn(row, lane)
  local lane_key = pool .. ':lane:' .. lane
  local id = has_type(types, lane_key, 'zset') and redis.call('ZRANGE', lane_key, 0, 0)[1]
  if not id or not has_type(types, pool .. ':task:' .. id, 'hash') then return end
  local task = read_task(pool .. ':task:' .. id, 'state', 'queue', 'rank', 'env', 'fair')
  if task.state ~= 'waiting' or not task.env then return end
  local queue = task.queue or skill_queue(task.env)
  local done = may_repair and has_type(types, pool .. ':queue:' .. queue, 'zset')
  if done then
    redis.call('HSET', pool .. ':task:' .. id, 'state', 'ready')
    ending.turns[id] = {place = ready_place(queue, task.fair, task.rank), score = integer(rank_of(task.rank) + now_ms)}
  end
  note(row, 'lost-turn', done)
end

-- Returns whether a stop, or the versions of its skill, hold a task back.
local function is_held(id, task)
  if not has_type(types, held_key, 'set') or types[held_key] == 'none' then return false end
  local found = read_task(pool .. ':task:' .. id, 'skill', 'env', 'refused', 'need')
  local scopes = suspended_scopes(task.queue, found.skill, id, found.env, found.refused, found.need)
  for i = 1, #scopes do
    if score_in(held_key .. ':' .. scopes[i], id) then return true end
  end
  return false
end

-- Returns whether a task waits among those of its key.
local function in_flow(id, task)
  return task.fair and score_in(pool .. ':share:wait:' .. flow_of(task.queue, task.fair, task.rank), id)
end

-- Lets a task of a key take its place again, unless it lends it while it waits for its children.
local function check_share(row, id, task)
  local taken_key = pool .. ':share:taken:' .. task.fair
  local lends = string.match(task.awaits or '', '^%d+') == task.gen
  if lends or not has_type(types, taken_key, 'set') or redis.call('SISMEMBER', taken_key, id) == 1 then return end
  if may_repair then take_place(pool, task.fair, id) end
  note(row, 'lost-place', may_repair)
end

-- Lets a flow stand in its queue and in the line again, unless it rests. A line with waiting tasks goes on to live.
local function check_stand(row, flow)
  local wait_key = pool .. ':share:wait:' .. flow
  local line, key, queue = parse_flow(flow)
  local queue_key, line_key = pool .. ':queue:' .. (queue or ''), pool .. ':share:line:' .. (line or '')
  if not queue or not has_type(types, wait_key, 'zset') or not has_type(types, queue_key, 'zset') then return end
  local first, stands = redis.call('ZRANGE', wait_key, 0, 99), false
  for i = 1, #first do stands = stands or redis.call('ZSCORE', queue_key, first[i]) end
  local rests = redis.call('SISMEMBER', pool .. ':share:rest:' .. key, flow) == 1
  local _, at_most = share_of(pool, key)
  if #first == 0 or not has_type(types, line_key, 'zset') or (rests and not may_start(pool, key, at_most)) then return end
  if stands and redis.call('ZSCORE', line_key, key) then
    if may_repair then redis.call('EXPIRE', line_key, day_s) end
    return
  end
  if may_repair then
    redis.call('SADD', pool .. ':share:flows', flow)
    stand(pool, flow)
  end
  note(row, 'lost-stand', may_repair)
end

-- Lists a task in `joining`, lets it live on, and ends its join if that is met. A join whose tasks are lost counts as met: the
-- next attempt registers them again. So does a key of another type, which the end of the join removes.
local function check_join(row, id, task)
  local joins_key = pool .. ':joins:' .. id
  local _, join, left, _, keep_s = parse_join(task.join)
  if not left or is_met(pool, id, left) then
    local done = can_repair(id, task) and has_type(types, pool .. ':queue:' .. task.queue, 'zset')
    if done then met_joins[id] = true end
    note(row, 'lost-join', done)
  elseif may_repair then
    redis.call('EXPIRE', pool .. ':task:' .. id, keep_s, 'GT')
    redis.call('EXPIRE', joins_key, integer(tonumber(keep_s) + day_s))
    if task.idem then redis.call('EXPIRE', pool .. ':idem:' .. task.idem, keep_s, 'GT') end
  end
  if not score_in(joining_key, id) then
    local until_ms = join and string.match(redis.call('HGET', pool .. ':task:' .. id, 'join:' .. join) or '', '^%d+ (%d+)')
    if may_repair then
      waiting.joining[#waiting.joining + 1] = until_ms and until_ms ~= '0' and until_ms or '+inf'
      waiting.joining[#waiting.joining + 1] = id
    end
    note(row, 'lost-joining', may_repair)
  end
end

-- Lets the ended predecessors of a task that has not ended live on, because it may read their results.
local function keep_predecessors(predecessors)
  for i = 1, #predecessors do
    --@row one: policy id state
    local one = predecessors[i]
    if has_ended(one.state) then redis.call('EXPIRE', pool .. ':task:' .. one.id, integer(max_wait_s + day_s), 'GT') end
  end
end

-- Gives an ended task of a flow its usual lifetime again once all tasks behind it have succeeded or are gone, because nothing reads
-- its result then. One that ended otherwise may be retried, and a parent that has not ended may submit the flow again.
local function let_go(id, task, envelope)
  local task_key = pool .. ':task:' .. id
  local followers, above = redis.call('HGET', task_key, 'followers'), parent_of(envelope)
  if not (followers or above) or not number(task.ended) or (above and kept_for(pool, above)) then return end
  followers = followers or ''
  bytes = bytes + 5 * #followers
  for parent in string.gmatch(task.joined, '%x+%-[%x-]+') do
    if kept_for(pool, parent) then return end
  end
  for follower in string.gmatch(followers, '%S+') do
    local follower_key = pool .. ':task:' .. follower
    local state = redis.call('TYPE', follower_key)['ok'] == 'hash' and redis.call('HGET', follower_key, 'state')
    if state and state ~= 'succeeded' then return end
  end
  local keep_s = lifetime(task.ttl, task.state == 'dead' and dead_ttl_s, task.idem)
  local left_s = integer(math.max(orphan_s, keep_s - math.floor((now_ms - number(task.ended)) / 1000)))
  redis.call('EXPIRE', task_key, left_s, 'LT')
  if task.idem then redis.call('EXPIRE', pool .. ':idem:' .. task.idem, left_s, 'LT') end
end

-- Lets a predecessor that has not ended name a task behind it.
local function check_follower(row, id, predecessor)
  local task_key = pool .. ':task:' .. predecessor
  local found = read_task(task_key, 'followers', 'joined')
  local stored, joined = found.followers or '', found.joined or ''
  bytes = bytes + #stored
  local is_named, is_marked = string.find(stored, id, 1, true), string.find(joined, '+', 1, true)
  if is_named and is_marked then return end
  if may_repair then
    if not is_named then redis.call('HSET', task_key, 'followers', #stored % 37 == 36 and stored .. ' ' .. id or id) end
    if not is_marked then
      redis.call('HSET', task_key, 'joined', (joined == '' and '' or joined .. ' ') .. '+' .. integer(max_wait_s + day_s))
    end
  end
  note(row, 'lost-follower', may_repair)
end

-- Compares the list of the predecessors of a task with their records, which decide, and lets the task live on. While notes of ends
-- wait for `promote`, ends may be missing.
local function check_after(row, id, task)
  local after_key = pool .. ':after:' .. id
  local predecessors, done = look_at_predecessors(pool, task.after), can_repair(id, task)
  local there = has_type(types, after_key, 'zset') and types[after_key] ~= 'none'
  local noted, missed = redis.call('TYPE', pool .. ':ends')['ok'] == 'list', 0
  bytes = bytes + 200 * #predecessors
  if not there then
    note(row, 'lost-after', done)
    if done then
      redis.call('UNLINK', after_key)
      for i = 1, #predecessors do redis.call('ZADD', after_key, predecessors[i][1], predecessors[i][2]) end
      types[after_key] = 'zset'
      freed[#freed + 1] = id
    end
  end
  for i = 1, #predecessors do
    --@row one: policy id state
    local one = predecessors[i]
    if has_ended(one.state) or one.state == 'deleted' then
      local listed = there and not noted and redis.call('ZSCORE', after_key, one.id)
      if listed then missed = missed + 1 end
      if done and (listed or not there) then told_ends[#told_ends + 1] = {one.id, one.state, id} end
    else
      check_follower(row, id, one.id)
    end
  end
  if missed > 0 then note(row, 'lost-end', done) end
  if may_repair then
    redis.call('EXPIRE', pool .. ':task:' .. id, max_wait_s, 'GT')
    if task.idem then redis.call('EXPIRE', pool .. ':idem:' .. task.idem, max_wait_s, 'GT') end
    redis.call('EXPIRE', after_key, integer(max_wait_s + day_s))
    keep_predecessors(predecessors)
  end
  if not score_in(following_key, id) then
    if may_repair then redis.call('ZADD', following_key, submitted_ms(id), id) end
    note(row, 'lost-following', may_repair)
  end
end

local function check_waiting(row, id, task)
  if task.state == 'waiting' then
    -- `check_lane` has judged its place.
  elseif task.state == 'ready' then
    local queue_key = pool .. ':queue:' .. task.queue
    local addressed = string.match(task.queue, '^agent:(.*)$')
    if not score_in(queue_key, id) and not score_in(pool .. ':suspects:' .. task.queue, id)
      and not (addressed and score_in(pool .. ':parked:' .. addressed, id)) and not in_flow(id, task)
      and not is_held(id, task) then
      local done = can_repair(id, task) and has_type(types, queue_key, 'zset')
      if done then
        -- The original place, if the task was assigned before.
        local score = string.match(task.at or '', ' (%d+)$')
        local since = math.max(number(task.gen), number(task.due) or 0)
        enqueue(waiting.ready, ready_place(task.queue, task.fair, task.rank), score or integer(rank_of(task.rank) + since), id)
      end
      note(row, 'lost-ready', done)
    end
  elseif task.state == 'awaiting_input' then
    if not score_in(asking_key, id) then
      local done, due = can_repair(id, task), number(task.due) or 0
      if done then
        waiting.asking[#waiting.asking + 1] = due > 0 and integer(due) or '+inf'
        waiting.asking[#waiting.asking + 1] = id
      end
      note(row, 'lost-asking', done)
    end
  elseif task.state == 'joining' then
    check_join(row, id, task)
  elseif task.state == 'awaiting_tasks' then
    check_after(row, id, task)
  elseif not score_in(scheduled_key, id) then
    local done = can_repair(id, task)
    if done then
      waiting.scheduled[#waiting.scheduled + 1] = task.due or integer(now_ms)
      waiting.scheduled[#waiting.scheduled + 1] = id
    end
    note(row, 'lost-scheduled', done)
  end
  if task.by and not score_in(expiring_key, id) then
    if may_repair then
      waiting.expiring[#waiting.expiring + 1] = task.by
      waiting.expiring[#waiting.expiring + 1] = id
    end
    note(row, 'lost-deadline', may_repair)
  end
end

local function check_assigned(row, id, task)
  local agent, entry, score = string.match(task.at or '', '^(%S+) (%d+%-%d+) (%d+)$')
  local fine, lies = false, false
  if agent then fine, lies = is_reachable(pool, types, inboxes, agent, entry, id) end
  if fine then
    if task.fair then check_share(row, id, task) end
    return
  end
  local queue_key = pool .. ':queue:' .. task.queue
  local done = can_repair(id, task) and has_type(types, queue_key, 'zset')
  if done and agent then done = has_type(types, pool .. ':agent:' .. agent, 'hash') end
  note(row, 'lost-entry', done)
  if not done then return end
  if not agent then
    agent, entry, score = '-', '0-0', integer(rank_of(task.rank) + number(task.gen))
    redis.call('HSET', pool .. ':task:' .. id, 'at', agent .. ' ' .. entry .. ' ' .. score)
  end
  if lies then
    leave[agent] = leave[agent] or {}
    table.insert(leave[agent], entry)
  end
  local taken = reclaim_task(pool, ending, agent, entry, id, nil, false, {}, dead_ttl_s, '')
  if taken then
    requeue_task(pool, waiting, id, taken, integer(next_generation(taken.gen, now_ms)), now, 'its inbox entry was lost')
    task.state = 'ready'
  else
    task.state = redis.call('HGET', pool .. ':task:' .. id, 'state')
  end
end

local function check_lifetime(row, id, task)
  local task_key = pool .. ':task:' .. id
  if redis.call('TTL', task_key) ~= -1 then return end
  if may_repair then
    local keep_s = day_s
    if task.deleted then
      keep_s = 300
    elseif has_ended(task.state) then
      keep_s = lifetime(task.ttl, task.state == 'dead' and dead_ttl_s, task.idem)
    elseif is_waiting(task.state) then
      keep_s = max_wait_s + math.ceil(math.max(0, (number(task.due) or 0) - now_ms) / 1000)
    end
    redis.call('EXPIRE', task_key, keep_s)
    if task.idem then redis.call('EXPIRE', pool .. ':idem:' .. task.idem, keep_s) end
  end
  note(row, 'no-lifetime', may_repair)
end

local function end_damaged(id, task, field)
  local kept = {idem = task.idem, session = task.session, out = task.out, gen = number(task.gen) and task.gen or '0',
    fails = number(task.fails), deaths = number(task.deaths), lane = task.lane, fair = task.fair, joined = task.joined}
  local reason = 'its record is damaged: ' .. field
  end_task(pool, ending, id, kept, 'dead', lifetime(task.ttl, dead_ttl_s), {'reason', reason})
  index_dead(pool, id, now_ms, dead_ttl_s)
  if is_waiting(task.state) then stop_waiting(pool, ending, id, task.queue, task.env) end
  if task.state == 'awaiting_tasks' then leave_following(pool, id) end
  task.state = 'dead'
end

-- Lists a task in the indices of its tags.
local function check_tags(row, id, envelope)
  local tags = tags_of(envelope)
  for i = 1, #tags do
    local tag_key = pool .. ':tag:' .. tags[i]
    if has_type(types, tag_key, 'zset') and not redis.call('ZSCORE', tag_key, id) then
      if may_repair then redis.call('ZADD', tag_key, submitted_ms(id), id) end
      note(row, 'lost-tag', may_repair)
    end
  end
end

-- Judges a record, once per call. Returns `missing`, `unreadable`, or the fields of the record after the repair.
local function judge(row, id)
  if tasks[id] then return tasks[id] end
  local task_key = pool .. ':task:' .. id
  local task = {}
  tasks[id] = task
  local type = redis.call('TYPE', task_key)['ok']
  if type == 'none' then
    task.missing = true
    return task
  elseif type ~= 'hash' then
    task.unreadable = true
    return task
  end
  local values = read_task(task_key, unpack(record_fields))
  for i = 1, #record_fields do task[record_fields[i]] = values[i] end
  check_lifetime(row, id, task)
  if task.deleted or has_ended(task.state) then
    local since = task.state == 'dead' and number(task.ended)
    if since and since > now_ms - dead_ttl_s * 1000 and not score_in(dead_key, id) then
      if may_repair then index_dead(pool, id, since, dead_ttl_s) end
      note(row, 'lost-letter', may_repair)
    end
    local envelope = not task.deleted and redis.call('HGET', task_key, 'env')
    if envelope then
      bytes = bytes + #envelope
      check_tags(row, id, envelope)
      if may_repair and string.find(task.joined or '', '+', 1, true) then let_go(id, task, envelope) end
    end
    return task
  end
  if not task.state and redis.call('HLEN', task_key) == 1 then
    -- A large value, whose submit or verdict follows; it expires in a minute without.
    task.missing = true
    return task
  end
  task.env = redis.call('HGET', task_key, 'env')
  bytes = bytes + #(task.env or '')
  local field = corrupt_field(task)
  if field then
    local done = can_repair(id, task) and not task.ended
    if done then end_damaged(id, task, field) end
    note(row, 'damaged', done)
    task.damaged = true
    return task
  end
  task.queue = task.queue or skill_queue(task.env)
  check_tags(row, id, task.env)
  task.env = nil
  if task.lane then check_lane(row, id, task) end
  if task.after and may_repair and task.state ~= 'awaiting_tasks' then
    local predecessors = look_at_predecessors(pool, task.after)
    bytes = bytes + 200 * #predecessors
    keep_predecessors(predecessors)
  end
  if is_waiting(task.state) then
    check_waiting(row, id, task)
  elseif task.state == 'assigned' then
    check_assigned(row, id, task)
  end
  return task
end

local joins = {}
-- Returns the state of a task that joins others, once per call: `joining`, `assigned` while its attempt registers them, else ''.
local function joins_now(parent)
  if not joins[parent] then
    local parent_key = pool .. ':task:' .. parent
    joins[parent] = ''
    if has_type(types, parent_key, 'hash') then
      local found = read_task(parent_key, 'state', 'gen', 'join')
      local registers = found.state == 'assigned' and parse_join(found.join) == found.gen
      if found.state == 'joining' or registers then joins[parent] = found.state end
    end
  end
  return joins[parent]
end

-- Lets a task name a parent that joins it.
local function check_parent(row, id, task, parent)
  if string.find(' ' .. (task.joined or '') .. ' ', ' ' .. parent .. ' ', 1, true) then return end
  if may_repair then
    redis.call('HSET', pool .. ':task:' .. id, 'joined', task.joined and task.joined .. ' ' .. parent or parent)
  end
  note(row, 'lost-parent', may_repair)
end

local function belongs(id, task, place)
  if place == 'dead' then return task.state == 'dead' end
  if string.match(place, '^tag:') then return not task.deleted end
  -- A damaged record stays indexed until it has ended, because its place cannot be judged.
  if task.damaged then return not has_ended(task.state) end
  if place == 'scheduled' then return task.state == place end
  if place == 'asking' then return task.state == 'awaiting_input' end
  if place == 'joining' then return task.state == place end
  if place == 'after' then return task.state == 'awaiting_tasks' end
  local parent = string.match(place, '^joins:(.*)$')
  if parent then return not has_ended(task.state) and not task.deleted and joins[parent] ~= '' end
  if place == 'expiring' then return is_waiting(task.state) and task.by end
  local lane = string.match(place, '^lane:(.*)$')
  if lane then return task.lane == lane and in_lane(task) end
  local taken = string.match(place, '^share:taken:(.*)$')
  if taken then return task.state == 'assigned' and task.fair == taken end
  if task.state ~= 'ready' then return false end
  local flow = string.match(place, '^share:wait:(.*)$')
  if flow then return task.fair and flow == flow_of(task.queue, task.fair, task.rank) end
  local parked = string.match(place, '^parked:(.*)$')
  if parked then return task.queue == 'agent:' .. parked and not score_in(pool .. ':queue:agent:' .. parked, id) end
  local suspects = string.match(place, '^suspects:(.*)$')
  if suspects then return task.queue == suspects and not score_in(pool .. ':queue:' .. suspects, id) end
  if string.match(place, '^held:') then return not score_in(pool .. ':queue:' .. task.queue, id) end
  return place == 'queue:' .. task.queue
end

local function check_place(row, id, place)
  local task = judge(row, id)
  local code
  local parent = string.match(place, '^joins:(.*)$')
  local join = parent and joins_now(parent)
  if task.missing then
    code = 'gone'
  elseif task.unreadable then
    code = 'unreadable'
  elseif not belongs(id, task, place) then
    code = 'misplaced'
  end
  if parent and not code then check_parent(row, id, task, parent) end
  if not code or not (score_in(pool .. ':' .. place, id) or is_member(pool .. ':' .. place, id)) then return end
  -- A record expires without a script, so that its entry for a tag is no damage.
  local expired = code == 'gone' and string.match(place, '^tag:')
  -- A parent that does not join any longer leaves its join behind when its attempt died, and its tasks end without it.
  if parent and join ~= 'joining' then expired = true end
  if may_repair then
    local ids = misplaced[place]
    if not ids then
      ids = {}
      misplaced[place] = ids
    end
    ids[#ids + 1] = id
  end
  if not expired then note(row, code, may_repair) end
end

local function check_output(row, id)
  local out_key = pool .. ':out:' .. id
  local left_s, task_s = redis.call('TTL', out_key), redis.call('TTL', pool .. ':task:' .. id)
  if left_s == -2 then return end
  if task_s == -2 and (left_s == -1 or left_s > orphan_s) then
    if may_repair then redis.call('EXPIRE', out_key, orphan_s) end
    note(row, 'orphan-output', may_repair)
  elseif left_s == -1 then
    if may_repair then redis.call('EXPIRE', out_key, math.max(task_s, orphan_s)) end
    note(row, 'no-lifetime', may_repair)
  end
end

local function check_key(row, idem)
  local idem_key = pool .. ':idem:' .. idem
  if not has_type(types, idem_key, 'string') then return end
  local holder = redis.call('GET', idem_key)
  if not holder then return end
  local id = string.match(holder, '^(%S+) .')
  local code
  if not id then
    code = 'damaged'
  elseif redis.call('EXISTS', pool .. ':task:' .. id) == 0 then
    code = 'orphan-key'
  elseif redis.call('TTL', idem_key) == -1 then
    if may_repair then redis.call('EXPIRE', idem_key, math.max(orphan_s, redis.call('TTL', pool .. ':task:' .. id))) end
    note(row, 'no-lifetime', may_repair)
  end
  if code then
    if may_repair then redis.call('UNLINK', idem_key) end
    note(row, code, may_repair)
  end
end

-- Checks that `queues` or `suspects` lists a queue, or `held` the scope of a stop, exactly when it holds tasks.
local function check_listed(row, list_key, prefix, queue)
  local queue_key = pool .. prefix .. queue
  if not has_type(types, list_key, 'set') then return end
  local listed = redis.call('SISMEMBER', list_key, queue) == 1
  local there = has_type(types, queue_key, 'zset') and types[queue_key] ~= 'none'
  if listed == there then return end
  if may_repair and there then
    redis.call('SADD', list_key, queue)
    local _, held_for = parse_version_scope(queue)
    if held_for then list_version_scope(pool, queue, math.floor(now / 1000)) end
    notify_supervisor(pool, 'queue:' .. (held_for or queue))
  elseif may_repair then
    redis.call('SREM', list_key, queue)
  end
  note(row, there and 'unlisted-queue' or 'listed-empty', may_repair)
end

for i = 1, #rows do
  if bytes > call_bytes then break end
  local id, place = rows[i].id, rows[i].place
  local idem, queue = string.match(place, '^idem:(.*)$'), string.match(place, '^queue:(.*)$')
  local lane, scope = string.match(place, '^lane:(.*)$'), string.match(place, '^held:(.*)$')
  local suspects, flow = string.match(place, '^suspects:(.*)$'), string.match(place, '^share:wait:(.*)$')
  if idem then
    check_key(i, idem)
  elseif id == '' and queue then
    check_listed(i, queues_key, ':queue:', queue)
  elseif id == '' and scope then
    check_listed(i, held_key, ':held:', scope)
  elseif id == '' and suspects then
    check_listed(i, suspects_key, ':suspects:', suspects)
  elseif id == '' and flow then
    flows[i] = flow
  elseif id == '' and lane then
    lanes[i] = lane
  elseif place == 'lane' then
    lanes[i] = judge(i, id).lane
  elseif place == 'out' then
    check_output(i, id)
  elseif place ~= '' then
    check_place(i, id, place)
  elseif judge(i, id).unreadable then
    note(i, 'unreadable', false)
  end
  answers[1] = i
end

-- Adds to the new places before it removes from the old ones, so that an interrupted script loses no task.
flush_waiting(pool, waiting)
for place, ids in pairs(misplaced) do
  local queue, suspects = string.match(place, '^queue:(.*)$'), string.match(place, '^suspects:(.*)$')
  local flow, taken = string.match(place, '^share:wait:(.*)$'), string.match(place, '^share:taken:(.*)$')
  local parent = string.match(place, '^joins:(.*)$')
  if parent then
    -- Their ends are not known to have been successes.
    if remove_joined(pool, parent, ids) > 0 then look_at_join(pool, ending, parent, true) end
  elseif flow and select(3, parse_flow(flow)) then
    for i = 1, #ids do leave_flow(pool, flow, ids[i]) end
  elseif taken then
    for i = 1, #ids do free_place(pool, ending, taken, ids[i]) end
  elseif queue then
    remove_from_queue(pool, queue, ids)
  elseif suspects then
    remove_suspects(pool, suspects, ids)
    notify_of_kept_slots(pool, suspects)
  else
    redis.call('ZREM', pool .. ':' .. place, unpack(ids))
  end
end
for id in pairs(met_joins) do look_at_join(pool, ending, id, false) end
for i = 1, #told_ends do
  --@row one: id state follower
  local one = told_ends[i]
  tell_follower(pool, ending, one.id, one.state, one.follower, max_wait_s)
end
for i = 1, #freed do
  if redis.call('EXISTS', pool .. ':after:' .. freed[i]) == 0 then release_follower(pool, ending, freed[i], max_wait_s) end
end
for agent, entries in pairs(leave) do remove_entries(pool, agent, entries) end
for i = 1, #rows do
  if lanes[i] then check_turn(i, lanes[i]) end
  if flows[i] then check_stand(i, flows[i]) end
end
if repaired > 0 then ending.counts.repaired = repaired end
if cleaned > 0 then ending.counts.cleaned = cleaned end
flush_endings(pool, ending)
return answers
