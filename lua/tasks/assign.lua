#!lua flags=allow-oom
-- Moves the best ready tasks of an agent's queues into its inbox: as many as its workers' free slots, its limits,
-- `limit` and 1 MiB of envelopes allow. A task that is assigned has taken its slots of the limits. After the agent got a
-- skill, each call also returns up to 500 parked tasks to its queue.
-- returns: assigned, left (1: tasks and room, or tasks to unpark, remain: call again), next_free_us (0: no limit holds tasks back), now_us
-- repeat: assigns further tasks
local pool    = KEYS[1]             -- key: root of the pool's slot
local agent   = ARGV[1]             -- str: agent
local limit   = tonumber(ARGV[2])   -- int: at most this many (500)
local now_arg = ARGV[3]             -- time: test override, microseconds
--@include time: now_us, integer
--@include record: read_task, lifetime, next_generation
--@include desired: is_active, agent_blocked, any_session_stopped, stopped_scope
--@include envelope: skill_queue
--@include version: version_scope, parse_version_scope, list_version_scope, unlist_scope, any_refuses, live_versions, awaits_version
--@include notify: notify_supervisor, notify_of_suspects
--@include room: inbox_room, mark_full
--@include queue: remove_from_queue, put_suspects
--@include inbox: put_entry
--@include parked: unpark
--@include lent: lent_slots, awaited_tasks, mark_awaited
--@include limit: limit_room, take_slots
--@include ending: start_endings, end_task, flush_endings

local call_bytes = 1048576
local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
-- The generation of almost every task. Formatting it once per task would cost about a microsecond.
local now_text = integer(now_ms)
local agent_key = pool .. ':agent:' .. agent
local spec = redis.call('HMGET', agent_key, 'slots', 'backlog', 'skills', 'limits', 'unpark')
local slots = tonumber(spec.slots or 0)
if slots == 0 then return {0, 0, 0, now} end
local backlog, limits = tonumber(spec.backlog), spec.limits
local any_active = redis.call('EXISTS', pool .. ':desired') == 1
if any_active and agent_blocked(pool, agent) then return {0, 0, 0, now} end
local sessions = any_active and any_session_stopped(pool)

local queues, skilled = {'agent:' .. agent}, {}
for skill in string.gmatch(spec.skills, '%S+') do
  queues[#queues + 1] = 'skill:' .. skill
  skilled[skill] = true
end
local unparking = spec.unpark and unpark(pool, agent, skilled, spec.unpark, 500) and 1 or 0

-- Returns whether a stop or a pause holds a queue.
local function is_closed(queue)
  return any_active and (is_active(pool, 'stop:' .. queue) or is_active(pool, 'pause:queue:' .. queue))
end

local suspected = 0
if redis.call('EXISTS', pool .. ':suspects') == 1 then
  for i = 1, #queues do
    if not is_closed(queues[i]) then suspected = suspected + redis.call('ZCARD', pool .. ':suspects:' .. queues[i]) end
  end
end
local room = inbox_room(pool, agent, slots, backlog, suspected)

-- Names the places that hold tasks for the agent: its queues, and tasks that other versions of a skill refused than those
-- that its workers have.
local filled, serves, digests = {}, {}, nil
for i = 1, #queues do
  local queue = queues[i]
  if not is_closed(queue) then
    serves[queue] = true
    if redis.call('EXISTS', pool .. ':queue:' .. queue) == 1 then filled[#filled + 1] = 'queue:' .. queue end
  end
end
local scopes = redis.call('ZRANGE', pool .. ':refused', 0, 999)
for i = 1, #scopes do
  local scope = scopes[i]
  local refused, queue = parse_version_scope(scope)
  if serves[queue] and redis.call('EXISTS', pool .. ':held:' .. scope) == 1 then
    digests = digests or live_versions(pool, agent)
    if not any_refuses(refused, digests) then filled[#filled + 1] = 'held:' .. scope end
  end
end
if #filled == 0 then return {0, unparking, 0, now} end

-- Awaited tasks go into the slots that parents lend, before the others (protocol rule 32).
local lent, deep, more_awaited = lent_slots(pool, agent), {}, false
if lent then
  local open = {}
  for i = 1, #queues do
    if serves[queues[i]] then open[#open + 1] = queues[i] end
  end
  deep, more_awaited = awaited_tasks(pool, open, lent, inbox_room(pool, agent, slots, backlog, 0), limit)
end
local first = #deep / 3
local want, next_free = math.min(room, limit) - first, 0
if limits ~= '' and (want > 0 or first > 0) then
  -- A limited agent has no backlog. Assigns half of its slots, so that its workers run one half and fetch the other.
  want = math.min(math.max(want, 0) + first, math.ceil(slots / 2))
  want, next_free = limit_room(pool, limits, now, want)
  first = math.min(first, want)
  want = want - first
end
if want <= 0 and first == 0 then
  -- Only a full inbox is marked, because a limit reopens by time.
  if room <= 0 then mark_full(pool, agent, slots, backlog) end
  if more_awaited then mark_awaited(pool, agent) end
  return {0, unparking, next_free, now}
end
want = math.max(want, 0)
-- Reads the heads of these places, best first, and no more of each than may be assigned.
local each = want
if #filled > 1 then each = math.max(1, math.min(want, math.floor(1000 / #filled))) end
-- A flat list id, score, id, score ... as Redis returns it; `from` has the queue of each. Scores stay text.
local heads, from = {}, {}
if want == 0 then
  -- There is room for awaited tasks only.
elseif #filled == 1 then
  heads = redis.call('ZRANGE', pool .. ':' .. filled[1], 0, each - 1, 'WITHSCORES')
else
  --@rows merged: id order score place
  --@row a: id order
  --@row b: id order
  local merged = {}
  for i = 1, #filled do
    local found = redis.call('ZRANGE', pool .. ':' .. filled[i], 0, each - 1, 'WITHSCORES')
    for j = 1, #found, 2 do
      merged[#merged + 1] = {found[j], tonumber(found[j + 1]), found[j + 1], filled[i]}
    end
  end
  table.sort(merged, function(a, b)
    if a.order ~= b.order then return a.order < b.order end
    return a.id < b.id
  end)
  for i = 1, #merged do
    heads[2 * i - 1], heads[2 * i], from[i] = merged[i].id, merged[i].score, merged[i].place
  end
end
if first > 0 then
  local ids, places, chosen = {}, {}, {}
  for i = 1, first do
    local id, place = deep[3 * i - 2], deep[3 * i]
    ids[2 * i - 1], ids[2 * i], places[i], chosen[id] = id, deep[3 * i - 1], place, true
    redis.call('ZREM', pool .. ':awaited:' .. string.sub(place, 7), id)
  end
  for i = 1, #heads / 2 do
    if not chosen[heads[2 * i - 1]] then
      ids[#ids + 1], ids[#ids + 2], places[#places + 1] = heads[2 * i - 1], heads[2 * i], from[i] or filled[1]
    end
  end
  heads, from = ids, places
end

local plain = {}
-- Returns state, generation and envelope of a task, and a table of its other fields.
local function read(task_key)
  -- A plain task in its first attempt has these three fields, or these and a lane or a session; the rest need not be read.
  local fields = redis.call('HLEN', task_key)
  if fields == 3 then return read_task(task_key, 'state', 'gen', 'env'), plain end
  if fields == 4 then
    local found = read_task(task_key, 'state', 'gen', 'env', 'lane', 'session')
    if found.lane or found.session then return found, {lane = found.lane, session = found.session} end
  end
  local found = read_task(task_key, 'state', 'gen', 'env', 'fails', 'deaths', 'by', 'ttl', 'idem', 'skill',
    'out', 'requeued', 'lane', 'group', 'refused', 'queue', 'session')
  return found, {fails = found.fails, deaths = found.deaths, by = found.by, ttl = found.ttl, idem = found.idem,
    skill = found.skill, out = found.out, requeued = found.requeued, lane = found.lane,
    group = found.group, refused = found.refused, queue = found.queue, session = found.session}
end

local held, awaited = {}, {}
local function collect(scope, id, score)
  local scored = held[scope]
  if not scored then
    scored = {}
    held[scope] = scored
  end
  scored[#scored + 1] = score
  scored[#scored + 1] = id
end

-- Collects a task if a stop holds it back (protocol rule 7); returns whether one does.
local function hold_back(id, score, skill, envelope)
  local scope = stopped_scope(pool, sessions, skill, envelope)
  if scope then collect(scope, id, score) end
  return scope
end

-- Collects a task if workers of this agent have a version of its skill that refused it and another version may take it
-- (protocol rule 28); returns whether that is so.
local function hold_for_version(id, score, task, envelope)
  digests = digests or live_versions(pool, agent)
  if not any_refuses(task.refused, digests) then return false end
  local queue = task.queue or skill_queue(envelope)
  local skill = task.skill or string.match(queue, '^skill:(.*)$')
  local scope = version_scope(task.refused, queue)
  local known = scope .. ' ' .. skill
  if awaited[known] == nil then
    awaited[known] = awaits_version(pool, skill, string.match(queue, '^agent:(.*)$'), task.refused)
  end
  if awaited[known] then collect(scope, id, score) end
  return awaited[known]
end

-- Removes tasks from a queue, or from those that versions refused; returns whether the place holds more.
local function remove(place, ids)
  local queue = string.match(place, '^queue:(.*)$')
  if queue then return remove_from_queue(pool, queue, ids) end
  redis.call('ZREM', pool .. ':' .. place, unpack(ids))
  if redis.call('EXISTS', pool .. ':' .. place) == 1 then return true end
  unlist_scope(pool, string.match(place, '^held:(.*)$'))
  return false
end

local ending = start_endings(now)
local removed, grants, expiring = {}, {}, {}
local parked, suspects = {}, {}
local assigned, bytes = 0, 0
-- Of several queues only `each` heads are known, so that no more may be assigned before the next read.
for i = 1, math.min(#heads / 2, first + each) do
  if assigned >= first + want or bytes >= call_bytes then break end
  local id, score, place = heads[2 * i - 1], heads[2 * i], from[i] or filled[1]
  local task_key = pool .. ':task:' .. id
  --@row found: state gen env
  local found, task = read(task_key)
  if found.state ~= 'ready' then
    -- An index entry that an interrupted script left behind; the record decides.
  elseif task.by and tonumber(task.by) <= now_ms then
    task.gen = found.gen
    end_task(pool, ending, id, task, 'expired', lifetime(task.ttl), {'reason', 'did not start in time'})
    expiring[#expiring + 1] = id
  elseif task.skill and not skilled[task.skill] then
    parked[#parked + 1] = score
    parked[#parked + 1] = id
  elseif any_active and hold_back(id, score, task.skill, found.env) then
    -- The task waits with the others of its stop, so that it does not block the queue.
  elseif task.refused and hold_for_version(id, score, task, found.env) then
    -- The task waits with the others that these versions refused.
  elseif task.group then
    -- Workers with room for it take it (`take_suspects`).
    local queue = task.queue or skill_queue(found.env)
    local scored = suspects[queue]
    if not scored then
      scored = {}
      suspects[queue] = scored
    end
    scored[#scored + 1] = score
    scored[#scored + 1] = id
    if task.group == '0' then redis.call('HSETNX', task_key, 'alone', integer(now_ms)) end
  else
    local generation = now_text
    if tonumber(found.gen) >= now_ms then generation = integer(next_generation(found.gen, now_ms)) end
    bytes = bytes + put_entry(pool, agent, id, score, generation, found.env, task)
    if limits ~= '' then grants[#grants + 1] = id .. ':' .. generation end
    if task.by then expiring[#expiring + 1] = id end
    assigned = assigned + 1
  end
  local gone = removed[place]
  if not gone then
    gone = {}
    removed[place] = gone
  end
  gone[#gone + 1] = id
end
if #grants > 0 then take_slots(pool, limits, now, grants) end
for scope, scored in pairs(held) do
  redis.call('ZADD', pool .. ':held:' .. scope, unpack(scored))
  local _, queue = parse_version_scope(scope)
  if not queue then
    redis.call('SADD', pool .. ':held', scope)
  elseif list_version_scope(pool, scope, now_ms) then
    -- Another agent may have another version.
    notify_supervisor(pool, 'queue:' .. queue)
  end
end
for queue, scored in pairs(suspects) do put_suspects(pool, queue, scored) end
if next(suspects) then notify_of_suspects(pool, agent) end
if #parked > 0 then redis.call('ZADD', pool .. ':parked:' .. agent, unpack(parked)) end
local remain = false
for i = 1, #filled do
  local ids = removed[filled[i]]
  if not ids or remove(filled[i], ids) then remain = true end
end
if #expiring > 0 then redis.call('ZREM', pool .. ':expiring', unpack(expiring)) end
if assigned > 0 then ending.counts.assigned = assigned end
flush_endings(pool, ending)

if not remain then return {assigned, unparking, 0, now} end
if assigned >= room then
  mark_full(pool, agent, slots, backlog)
  if more_awaited then mark_awaited(pool, agent) end
  return {assigned, unparking, 0, now}
end
return {assigned, 1, 0, now}
