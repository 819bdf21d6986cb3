-- Assigns ready tasks: moves them from the queues of an agent to its inbox.
--@include time: integer
--@include record: read_task, lifetime, next_generation
--@include desired: is_active, agent_blocked, any_session_stopped, stopped_scope
--@include envelope: skill_queue
--@include version: version_scope, parse_version_scope, list_version_scope, unlist_scope, any_refuses, live_versions, awaits_version
--@include notify: notify_supervisor, notify_of_suspects
--@include room: inbox_room, mark_full
--@include lent: lent_slots, awaited_tasks, mark_awaited
--@include queue: remove_from_queue, put_suspects
--@include inbox: put_entry
--@include limit: limit_room, take_slots
--@include ending: start_endings, end_task, flush_endings

-- The most bytes of envelopes that one call reads.
local assign_bytes = 262144

-- The fields of a plain task that need not be read.
local plain = {}

-- Returns the state of a call that assigns tasks; `flush_assigning` stores what it collects.
local function start_assigning(pool, now)
  local now_ms = math.floor(now / 1000)
  local any_active = redis.call('EXISTS', pool .. ':desired') == 1
  return {
    now = now, now_ms = now_ms,
    -- The generation of almost every task. Formatting it once per task would cost about a microsecond.
    now_text = integer(now_ms),
    any_active = any_active, sessions = any_active and any_session_stopped(pool),
    any_suspects = redis.call('EXISTS', pool .. ':suspects') == 1,
    scopes = redis.call('ZRANGE', pool .. ':refused', 0, 999),
    ending = start_endings(now), expiring = {}, awaited = {}, assigned = 0, bytes = 0,
  }
end

-- Returns whether a stop or a pause holds a queue.
local function is_closed(pool, run, queue)
  return run.any_active and (is_active(pool, 'stop:' .. queue) or is_active(pool, 'pause:queue:' .. queue))
end

-- Returns what an agent offers, with its queues that nothing holds and its room; nil if it may get no task: it has no
-- slots, or it is stopped or paused.
local function read_agent(pool, run, name)
  local spec = redis.call('HMGET', pool .. ':agent:' .. name, 'slots', 'backlog', 'skills', 'limits', 'unpark')
  local slots, backlog = tonumber(spec.slots or 0), tonumber(spec.backlog or 0)
  if slots == 0 or not spec.limits or (run.any_active and agent_blocked(pool, name)) then return nil end
  local agent = {name = name, slots = slots, backlog = backlog, limits = spec.limits, unpark = spec.unpark,
    skills = spec.skills or '', skilled = {}, queues = {}, suspects = 0}
  local own = 'agent:' .. name
  if not is_closed(pool, run, own) then agent.queues[1] = own end
  for skill in string.gmatch(agent.skills, '%S+') do
    local queue = 'skill:' .. skill
    agent.skilled[skill] = true
    if not is_closed(pool, run, queue) then agent.queues[#agent.queues + 1] = queue end
  end
  if run.any_suspects then
    for i = 1, #agent.queues do
      agent.suspects = agent.suspects + redis.call('ZCARD', pool .. ':suspects:' .. agent.queues[i])
    end
  end
  agent.room = inbox_room(pool, name, slots, backlog, agent.suspects)
  return agent
end

-- Names the places that hold tasks for an agent: its queues, and tasks that other versions of a skill refused than those
-- that its workers have.
local function filled_places(pool, run, agent)
  local filled, serves = {}, {}
  for i = 1, #agent.queues do
    local queue = agent.queues[i]
    serves[queue] = true
    if redis.call('EXISTS', pool .. ':queue:' .. queue) == 1 then filled[#filled + 1] = 'queue:' .. queue end
  end
  for i = 1, #run.scopes do
    local scope = run.scopes[i]
    local refused, queue = parse_version_scope(scope)
    if serves[queue] and redis.call('EXISTS', pool .. ':held:' .. scope) == 1 then
      agent.digests = agent.digests or live_versions(pool, agent.name)
      if not any_refuses(refused, agent.digests) then filled[#filled + 1] = 'held:' .. scope end
    end
  end
  return filled
end

-- Reads the first tasks of some places, best first: `each` of every place, fewer of many places. Returns a flat list of
-- ids and scores as Redis gives it, the place of each task if there are several, and how many of the tasks are known to be
-- the best.
local function read_heads(pool, filled, each)
  if #filled == 1 then
    return redis.call('ZRANGE', pool .. ':' .. filled[1], 0, each - 1, 'WITHSCORES'), {}, each
  end
  each = math.max(1, math.min(each, math.floor(1000 / #filled)))
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
  local heads, from = {}, {}
  for i = 1, #merged do
    heads[2 * i - 1], heads[2 * i], from[i] = merged[i].id, merged[i].score, merged[i].place
  end
  return heads, from, each
end

-- Puts the first awaited tasks before the others, and takes them out of the index of awaited tasks. Returns a flat list of
-- ids and scores, and the place of each task; the others are from `place` unless `from` says more.
local function awaited_first(pool, deep, first, heads, from, place)
  local ids, places, chosen = {}, {}, {}
  for i = 1, first do
    local id, own = deep[3 * i - 2], deep[3 * i]
    ids[2 * i - 1], ids[2 * i], places[i], chosen[id] = id, deep[3 * i - 1], own, true
    redis.call('ZREM', pool .. ':awaited:' .. string.sub(own, 7), id)
  end
  for i = 1, #heads / 2 do
    if not chosen[heads[2 * i - 1]] then
      ids[#ids + 1], ids[#ids + 2], places[#places + 1] = heads[2 * i - 1], heads[2 * i], from[i] or place
    end
  end
  return ids, places
end

-- Returns state, generation and envelope of a task, and a table of its other fields.
local function read_waiting(task_key)
  -- A plain task in its first attempt has these three fields, or these and a lane, a session or large arguments; the rest
  -- need not be read.
  local fields = redis.call('HLEN', task_key)
  if fields == 3 then return read_task(task_key, 'state', 'gen', 'env'), plain end
  if fields == 4 then
    local found = read_task(task_key, 'state', 'gen', 'env', 'lane', 'session')
    if found.lane or found.session then return found, {lane = found.lane, session = found.session} end
    if redis.call('HEXISTS', task_key, 'args') == 1 then return found, plain end
  end
  local found = read_task(task_key, 'state', 'gen', 'env', 'fails', 'deaths', 'by', 'ttl', 'idem', 'skill',
    'out', 'requeued', 'lane', 'group', 'refused', 'queue', 'session')
  return found, {fails = found.fails, deaths = found.deaths, by = found.by, ttl = found.ttl, idem = found.idem,
    skill = found.skill, out = found.out, requeued = found.requeued, lane = found.lane,
    group = found.group, refused = found.refused, queue = found.queue, session = found.session}
end

-- Adds a value, or two, to a list of a table of lists.
local function add_to_list(lists, name, first, second)
  local list = lists[name]
  if not list then
    list = {}
    lists[name] = list
  end
  list[#list + 1] = first
  list[#list + 1] = second
end

-- Returns the scope of the versions that refused a task, if workers of the agent have one of them and another version may
-- take the task (protocol rule 28).
local function refusing_scope(pool, run, agent, task, envelope)
  agent.digests = agent.digests or live_versions(pool, agent.name)
  if not any_refuses(task.refused, agent.digests) then return nil end
  local queue = task.queue or skill_queue(envelope)
  local skill = task.skill or string.match(queue, '^skill:(.*)$')
  local scope = version_scope(task.refused, queue)
  local known = scope .. ' ' .. skill
  if run.awaited[known] == nil then
    run.awaited[known] = awaits_version(pool, skill, string.match(queue, '^agent:(.*)$'), task.refused)
  end
  return run.awaited[known] and scope or nil
end

-- Removes tasks from a queue, or from those that versions refused; returns whether the place holds more.
local function remove_from_place(pool, place, ids)
  local queue = string.match(place, '^queue:(.*)$')
  if queue then return remove_from_queue(pool, queue, ids) end
  redis.call('ZREM', pool .. ':' .. place, unpack(ids))
  if redis.call('EXISTS', pool .. ':' .. place) == 1 then return true end
  unlist_scope(pool, string.match(place, '^held:(.*)$'))
  return false
end

-- Marks an agent that has no room for tasks that wait for it (protocol rule 6).
local function mark_agent(pool, agent)
  mark_full(pool, agent.name, agent.slots, agent.backlog)
  if agent.more_awaited then mark_awaited(pool, agent.name) end
end

-- Moves the best ready tasks of an agent's queues to its inbox: as many as its room, its limits, `most` and the bytes of a
-- call allow. Changes `agent.room`. Returns the result and, for `limited`, when a limit opens in us (0: unknown):
-- `done`, no task is left for the agent; `full`, tasks are left and no room is, so that the caller marks the agent;
-- `limited`, tasks are left and its limits hold them back; `more`, tasks and room are left.
local function fill_inbox(pool, run, agent, most)
  local filled = filled_places(pool, run, agent)
  if #filled == 0 then return 'done' end
  -- Awaited tasks go into the slots that parents lend, before the others (protocol rule 32).
  local lent, deep = lent_slots(pool, agent.name), {}
  if lent then
    local places = inbox_room(pool, agent.name, agent.slots, agent.backlog, 0)
    deep, agent.more_awaited = awaited_tasks(pool, agent.queues, lent, places, most)
  end
  local first = #deep / 3
  local limits, want, next_free = agent.limits, math.min(agent.room, most) - first, 0
  if limits ~= '' and (want > 0 or first > 0) then
    -- A limited agent has no backlog. Assigns half of its slots, so that its workers run one half and fetch the other.
    want = math.min(math.max(want, 0) + first, math.ceil(agent.slots / 2))
    want, next_free = limit_room(pool, limits, run.now, want)
    first = math.min(first, want)
    want = want - first
  end
  if want <= 0 and first == 0 then
    if agent.room <= 0 then return 'full' end
    if agent.more_awaited then mark_awaited(pool, agent.name) end
    return 'limited', next_free
  end
  want = math.max(want, 0)

  local heads, from, known = {}, {}, 0
  -- Without `want` there is room for awaited tasks only.
  if want > 0 then heads, from, known = read_heads(pool, filled, want) end
  if first > 0 then heads, from = awaited_first(pool, deep, first, heads, from, filled[1]) end
  local removed, grants, held, parked, suspects = {}, {}, {}, {}, {}
  local assigned = 0
  for i = 1, math.min(#heads / 2, first + known) do
    if assigned >= first + want or run.bytes >= assign_bytes then break end
    local id, score = heads[2 * i - 1], heads[2 * i]
    local task_key = pool .. ':task:' .. id
    --@row found: state gen env
    local found, task = read_waiting(task_key)
    local scope
    if found.state ~= 'ready' then
      -- An index entry that an interrupted script left behind; the record decides.
    elseif task.by and tonumber(task.by) <= run.now_ms then
      task.gen = found.gen
      end_task(pool, run.ending, id, task, 'expired', lifetime(task.ttl, nil, task.idem), {'reason', 'did not start in time'})
      run.expiring[#run.expiring + 1] = id
    elseif task.skill and not agent.skilled[task.skill] then
      parked[#parked + 1] = score
      parked[#parked + 1] = id
    else
      -- A task that a stop or these versions hold back waits with its like, so that it does not block the queue (protocol
      -- rules 7 and 28).
      scope = run.any_active and stopped_scope(pool, run.sessions, task.skill, found.env) or nil
      if not scope and task.refused then scope = refusing_scope(pool, run, agent, task, found.env) end
      if scope then
        add_to_list(held, scope, score, id)
      elseif task.group then
        -- Workers with room for it take it (`take_suspects`).
        add_to_list(suspects, task.queue or skill_queue(found.env), score, id)
        if task.group == '0' then redis.call('HSETNX', task_key, 'alone', run.now_text) end
      else
        local generation = run.now_text
        if tonumber(found.gen) >= run.now_ms then generation = integer(next_generation(found.gen, run.now_ms)) end
        run.bytes = run.bytes + #found.env
        put_entry(pool, agent.name, id, score, generation, found.env, task)
        if limits ~= '' then grants[#grants + 1] = id .. ':' .. generation end
        if task.by then run.expiring[#run.expiring + 1] = id end
        assigned = assigned + 1
      end
    end
    add_to_list(removed, from[i] or filled[1], id)
  end
  if #grants > 0 then take_slots(pool, limits, run.now, grants) end
  for scope, scored in pairs(held) do
    redis.call('ZADD', pool .. ':held:' .. scope, unpack(scored))
    local _, queue = parse_version_scope(scope)
    if not queue then
      redis.call('SADD', pool .. ':held', scope)
    elseif list_version_scope(pool, scope, run.now_ms) then
      -- Another agent may have another version.
      notify_supervisor(pool, 'queue:' .. queue)
    end
  end
  for queue, scored in pairs(suspects) do put_suspects(pool, queue, scored) end
  if next(suspects) then notify_of_suspects(pool, agent.name) end
  if #parked > 0 then redis.call('ZADD', pool .. ':parked:' .. agent.name, unpack(parked)) end
  local remain = false
  for i = 1, #filled do
    local ids = removed[filled[i]]
    if not ids or remove_from_place(pool, filled[i], ids) then remain = true end
  end
  run.assigned = run.assigned + assigned
  agent.room = agent.room - assigned
  if not remain then return 'done' end
  return agent.room > 0 and 'more' or 'full'
end

-- Stores what a call has collected.
local function flush_assigning(pool, run)
  if #run.expiring > 0 then redis.call('ZREM', pool .. ':expiring', unpack(run.expiring)) end
  if run.assigned > 0 then run.ending.counts.assigned = run.assigned end
  flush_endings(pool, run.ending)
end
