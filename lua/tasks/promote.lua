#!lua flags=allow-oom
-- Makes due tasks ready and ends tasks that did not start in time; up to `limit` of each. A task whose question or join has
-- passed its deadline continues at its original place, and its handler learns that.
-- returns: promoted, expired, ms until the next task is due (-1: none), left (1: more are due now), and whether
-- `cancel_children` has something to do (1)
-- repeat: promotes further tasks
local pool    = KEYS[1]             -- key: root of the pool's slot
local limit   = tonumber(ARGV[1])   -- int: at most this many of each kind (500)
local now_arg = ARGV[2]             -- time: test override, microseconds
--@include time: day_s, now_us, integer
--@include envelope: skill_queue
--@include record: read_task, has_ended, lifetime, rank_of, original_score, attempt_number
--@include output: append_event
--@include queue: put_ready, enqueue
--@include lane: join_lane, leave_ready
--@include share: flow_of, ready_place
--@include ending: start_endings, end_task, stop_waiting, flush_endings
--@include join: parse_join, is_met, end_join
--@include follow: leave_following

local now = now_us(now_arg)
local now_text = integer(math.floor(now / 1000))
local scheduled_key, expiring_key, asking_key = pool .. ':scheduled', pool .. ':expiring', pool .. ':asking'
local joining_key = pool .. ':joining'
local ending = start_endings(now)

local expired = 0
local late = redis.call('ZRANGE', expiring_key, '-inf', now_text, 'BYSCORE', 'LIMIT', 0, limit)
for i = 1, #late do
  local id = late[i]
  local task = read_task(pool .. ':task:' .. id, 'state', 'queue', 'ttl', 'idem', 'env', 'out', 'gen', 'fails',
      'deaths', 'lane', 'session', 'fair', 'rank', 'joined')
  if task.state == 'ready' or task.state == 'scheduled' or task.state == 'waiting'
      or task.state == 'awaiting_tasks' then
    local ended = {idem = task.idem, lane = task.lane, fair = task.fair, session = task.session, out = task.out, gen = task.gen, fails = task.fails, deaths = task.deaths,
      joined = task.joined}
    end_task(pool, ending, id, ended, 'expired', lifetime(task.ttl, nil, task.idem), {'reason', 'did not start in time'})
    stop_waiting(pool, ending, id, task.queue, task.env)
    if task.state == 'ready' then
      local queue = task.queue or skill_queue(task.env)
      leave_ready(pool, ending, queue, id, task.fair and flow_of(queue, task.fair, task.rank))
    elseif task.state == 'scheduled' then
      redis.call('ZREM', scheduled_key, id)
    elseif task.state == 'awaiting_tasks' then
      leave_following(pool, id)
    end
    expired = expired + 1
  end
end
if #late > 0 then redis.call('ZREM', expiring_key, unpack(late)) end

local due = redis.call('ZRANGE', scheduled_key, '-inf', now_text, 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
local ids, ready, promoted = {}, {}, 0
for i = 1, #due, 2 do
  local id, due_ms = due[i], tonumber(due[i + 1])
  ids[#ids + 1] = id
  local task = read_task(pool .. ':task:' .. id, 'state', 'queue', 'rank', 'env', 'lane', 'left', 'fair')
  if task.state == 'scheduled' then
    if task.lane and not join_lane(pool, task.lane, id, now) then
      redis.call('HSET', pool .. ':task:' .. id, 'state', 'waiting')
    else
      redis.call('HSET', pool .. ':task:' .. id, 'state', 'ready')
      local score = integer(rank_of(task.rank) + due_ms)
      -- A task that asks again for its lock keeps its place.
      if task.left == 'await_lock' then score = original_score(pool .. ':task:' .. id) end
      enqueue(ready, ready_place(task.queue or skill_queue(task.env), task.fair, task.rank), score, id)
    end
    promoted = promoted + 1
  end
end
local overdue = redis.call('ZRANGE', asking_key, '-inf', now_text, 'BYSCORE', 'LIMIT', 0, limit)
for i = 1, #overdue do
  local id = overdue[i]
  local task_key = pool .. ':task:' .. id
  local task = read_task(task_key, 'state', 'queue', 'env', 'at', 'asks', 'out', 'gen', 'fails', 'deaths',
    'fair', 'rank')
  if task.state == 'awaiting_input' then
    local number, score = task.asks or '0', string.match(task.at or '', ' (%d+)$') or now_text
    redis.call('HSET', task_key, 'state', 'ready', 'answered:' .. number, now_text)
    enqueue(ready, ready_place(task.queue or skill_queue(task.env), task.fair, task.rank), score, id)
    ending.counts.unanswered = (ending.counts.unanswered or 0) + 1
    promoted = promoted + 1
    if task.out then
      append_event(pool, id, task.gen, attempt_number(task.fails, task.deaths), 'unanswered', number)
    end
  end
end

-- Ends a join whose deadline has passed, or that is met: a call that ends the tasks of very many parents leaves some of
-- these to this script.
local function promote_join(id)
  local task_key = pool .. ':task:' .. id
  local task = read_task(task_key, 'state', 'join')
  if task.state ~= 'joining' then
    redis.call('ZREM', joining_key, id)
    return
  end
  local _, number, left, _, keep_s = parse_join(task.join)
  local began, until_ms = string.match(number and redis.call('HGET', task_key, 'join:' .. number) or '', '^(%d+) (%d+)')
  if not number or is_met(pool, id, left) then
    end_join(pool, ending, id, keep_s or day_s, 'joined')
  elseif until_ms and until_ms ~= '0' and tonumber(until_ms) <= tonumber(now_text) then
    redis.call('HSET', task_key, 'join:' .. number, began .. ' ' .. until_ms .. ' over')
    end_join(pool, ending, id, keep_s, 'join_timeout')
  else
    redis.call('ZADD', joining_key, until_ms and until_ms ~= '0' and until_ms or '+inf', id)
    return
  end
  promoted = promoted + 1
end

local late_joins = redis.call('ZRANGE', joining_key, '-inf', now_text, 'BYSCORE', 'LIMIT', 0, limit)
for i = 1, #late_joins do promote_join(late_joins[i]) end
for place, scored in pairs(ready) do put_ready(pool, place, scored) end
if #overdue > 0 then redis.call('ZREM', asking_key, unpack(overdue)) end
if #ids > 0 then redis.call('ZREM', scheduled_key, unpack(ids)) end

-- Tells followers that calls with very many of them have left; few notes, because those that are not done are written anew.
local most_notes = 50
local ends_key = pool .. ':ends'
local notes = redis.call('TYPE', ends_key)['ok'] == 'list' and redis.call('LRANGE', ends_key, 0, math.min(limit, most_notes) - 1) or {}
for i = 1, #notes do
  local id, state, place, keep_s = string.match(notes[i], '^(%S+) (%l+) (%d+) (%d+)$')
  -- A record of another type, and a note that no script wrote, must not keep the others from being told.
  if id and has_ended(state) and redis.call('TYPE', pool .. ':task:' .. id)['ok'] == 'hash' then
    ending.followed = ending.followed or {}
    table.insert(ending.followed, {id, state, tonumber(place), tonumber(keep_s)})
  end
end
flush_endings(pool, ending)
if #notes > 0 then redis.call('LTRIM', ends_key, #notes, -1) end

local next_due = -1
for _, key in ipairs({scheduled_key, expiring_key, asking_key, joining_key}) do
  -- Questions and joins without a deadline have the score infinity.
  local head = redis.call('ZRANGE', key, '-inf', '(+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  if head[2] and (next_due < 0 or tonumber(head[2]) < next_due) then next_due = tonumber(head[2]) end
end
local cancels = redis.call('EXISTS', pool .. ':cancelling')
if #notes > 0 and redis.call('EXISTS', ends_key) == 1 then return {promoted, expired, 0, 1, cancels} end
if next_due < 0 then return {promoted, expired, -1, 0, cancels} end
local wait_ms = math.max(0, next_due - math.floor(now / 1000))
return {promoted, expired, wait_ms, wait_ms == 0 and 1 or 0, cancels}
