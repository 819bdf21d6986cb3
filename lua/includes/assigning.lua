-- Assigns ready tasks: moves them from the queues of an agent to its inbox.
--@include time: integer
--@include key: set_aside
--@include record: read_task, read_alike, lifetime, next_generation
--@include desired: is_active, agent_blocked, held_until, any_session_stopped, stopped_scope
--@include envelope: skill_queue
--@include version: version_scope, parse_version_scope, list_version_scope, unlist_scope, any_refuses, live_versions, awaits_version
--@include notify: notify_supervisor, notify_of_suspects
--@include room: inbox_room, mark_full
--@include lent: lent_slots, awaited_tasks, mark_awaited
--@include queue: enqueue, put_suspects, put_held
--@include inbox: put_entry
--@include limit: limit_room, take_slots
--@include ending: start_endings, end_task, stop_waiting, flush_endings
--@include held_bytes: weigh, is_apart, collect_bytes
--@include budget: names_budgets, refusing_budget
--@include share: flow_of, parse_flow, known_share, may_start, take_turn, end_turn, join_flow

-- The most bytes of envelopes that one call reads.
local assign_bytes = 262144

-- The most tasks of an agent that one call looks at because others are held back.
local most_looked = 500

-- The fields of a plain task that need not be read.
local plain = {}

-- The fields of a plain task with large arguments.
local with_arguments = {}

-- Returns the scopes of versions that hold tasks, by queue: a flat list scope, digests, scope, digests ...
local function scopes_by_queue(pool)
  local scopes, found = redis.call('ZRANGE', pool .. ':refused', 0, 999), {}
  for i = 1, #scopes do
    local refused, queue = parse_version_scope(scopes[i])
    if queue then
      local listed = found[queue] or {}
      listed[#listed + 1], listed[#listed + 2] = scopes[i], refused
      found[queue] = listed
    end
  end
  return found
end

-- Returns the state of a call that assigns tasks; `flush_assigning` stores what it collects. `ahead` is the number of
-- tasks that it reads at once from a queue which several agents share.
local function start_assigning(pool, now, ahead)
  local now_ms = math.floor(now / 1000)
  local any_active = redis.call('EXISTS', pool .. ':desired') == 1
  local any_suspects, any_waits, scopes = false, false, nil
  -- There is rarely any.
  if redis.call('EXISTS', pool .. ':suspects', pool .. ':share:queues', pool .. ':refused') > 0 then
    any_suspects = redis.call('EXISTS', pool .. ':suspects') == 1
    any_waits = redis.call('EXISTS', pool .. ':share:queues') == 1
    scopes = scopes_by_queue(pool)
  end
  return {
    now = now, now_ms = now_ms,
    -- The generation of almost every task. Formatting it once per task would cost about a microsecond.
    now_text = integer(now_ms),
    any_active = any_active, sessions = any_active and any_session_stopped(pool),
    any_suspects = any_suspects, any_waits = any_waits, scopes = scopes or {},
    ending = start_endings(now), expiring = {}, awaited = {}, assigned = 0, looked = 0, bytes = 0, ahead = ahead,
    places = {}, opened = {}, shut = {}, closed = {}, unfilled = {}, lends = {}, known_shares = {}, types = {},
  }
end

-- Returns whether a call has moved or looked at as many tasks, or read as many bytes, as it may.
local function is_spent(run, limit)
  return run.assigned >= limit or run.looked >= limit or run.bytes >= assign_bytes
end

-- Looks with two commands whether any of these agents has tasks of its own or lends slots, which few of many do.
local function look_at_agents(pool, run, names)
  local queue_keys, lent_keys = {}, {}
  for i = 1, #names do
    queue_keys[i], lent_keys[i] = pool .. ':queue:agent:' .. names[i], pool .. ':lent:' .. names[i]
  end
  local any_queue = redis.call('EXISTS', unpack(queue_keys)) > 0
  local any_lent = redis.call('EXISTS', unpack(lent_keys)) > 0
  for i = 1, #names do
    if not any_queue then run.unfilled['agent:' .. names[i]] = true end
    if not any_lent then run.lends[names[i]] = false end
  end
end

-- Returns whether a stop or a pause holds a queue.
local function is_closed(pool, run, queue)
  if not run.any_active then return false end
  local closed = run.closed[queue]
  if closed == nil then
    closed = is_active(pool, 'stop:' .. queue) or is_active(pool, 'pause:queue:' .. queue) or false
    run.closed[queue] = closed
  end
  return closed
end

-- Returns what an agent offers, with its queues that nothing holds and its room; nil if it may get no task: it has no
-- slots, or it is stopped or paused.
local function read_agent(pool, run, name)
  local spec = redis.call('HMGET', pool .. ':agent:' .. name, 'slots', 'backlog', 'skills', 'limits', 'unpark', 'mark', 'funds')
  local slots, backlog = tonumber(spec.slots or 0), tonumber(spec.backlog or 0)
  if slots == 0 or not spec.limits or (run.any_active and agent_blocked(pool, name)) then return nil end
  local held_ms = run.any_active and held_until(pool, 'hold:agent:' .. name, run.now_ms) or 0
  local agent = {name = name, held_us = held_ms * 1000, slots = slots, backlog = backlog, limits = spec.limits, unpark = spec.unpark, mark = spec.mark,
    skills = spec.skills or '', skilled = {}, queues = {}, suspects = 0, funds = spec.funds}
  agent.adds_budgets = spec.funds and names_budgets(spec.funds)
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

-- Returns a place that holds tasks: a queue, or those that versions refused. All agents of a call take tasks from it in
-- turn, and `close_place` removes them, so that a call reads and changes each place once.
local function open_place(pool, run, name)
  local place = run.places[name]
  if not place then
    place = {name = name, count = redis.call('ZCARD', pool .. ':' .. name), heads = {}, at = 1, read = 0, gone = {},
      awaited = {}, shared = string.sub(name, 1, 12) ~= 'queue:agent:'}
    run.places[name] = place
    run.opened[#run.opened + 1] = name
  end
  return place
end

-- Returns the place of the tasks that versions refused. A client may have written a key of another type.
local function open_held(pool, run, scope)
  set_aside(pool, run.types, 'held:' .. scope, 'zset', run.now)
  return open_place(pool, run, 'held:' .. scope)
end

-- Returns how many tasks a place holds that the call has not taken out.
local function count_left(place)
  return place.count - #place.gone
end

-- Removes the tasks that the call has taken out of a place.
local function close_place(pool, run, place)
  local key = pool .. ':' .. place.name
  run.places[place.name] = nil
  if #place.gone == 0 then return end
  redis.call('ZREM', key, unpack(place.gone))
  if count_left(place) > 0 then return end
  local queue = string.match(place.name, '^queue:(.*)$')
  if queue then
    redis.call('SREM', pool .. ':queues', queue)
  else
    unlist_scope(pool, string.match(place.name, '^held:(.*)$'))
  end
end

-- Reads a queue anew from its first task, after a task with a key has left it.
local function reopen_place(pool, run, name)
  local place = run.places[name]
  if not place then return end
  if #place.gone > 0 then redis.call('ZREM', pool .. ':' .. name, unpack(place.gone)) end
  place.count, place.heads, place.at, place.read, place.gone = redis.call('ZCARD', pool .. ':' .. name), {}, 1, 0, {}
  place.changes = true
  local queue = string.match(name, '^queue:(.*)$')
  if place.count == 0 then redis.call('SREM', pool .. ':queues', queue) end
end

-- Chooses the task that gets the turn when the call meets a task with a key. Returns its flow, its id and its score; without
-- an id the met task is left where it belongs. A task that its parent awaits, and one that versions had refused, go first,
-- unless as many tasks of the key run as may.
local function choose_task(pool, run, place, id, score, task, envelope)
  local flow = flow_of(task.queue or skill_queue(envelope), task.fair, task.rank)
  local key = task.fair
  if not place.awaited[id] and string.sub(place.name, 1, 6) == 'queue:' then
    local turn, chosen, its_score = take_turn(pool, run, flow, id, score)
    if not turn then place.gone[#place.gone + 1] = id end
    return turn, chosen, its_score
  end
  if may_start(pool, key, known_share(pool, run, key)[2]) then return flow, id, score end
  if not place.awaited[id] then
    join_flow(pool, flow, {score, id})
    reopen_place(pool, run, 'queue:' .. (task.queue or skill_queue(envelope)))
    place.gone[#place.gone + 1] = id
  end
  return flow, nil
end

-- Removes what the call has taken out of the queues of an agent, because awaited tasks are looked up in the queues.
local function close_queues(pool, run, agent)
  for i = 1, #agent.queues do
    local opened = run.places['queue:' .. agent.queues[i]]
    if opened then close_place(pool, run, opened) end
  end
end

-- Returns the places that hold tasks for an agent: its queues, and tasks that other versions of a skill refused than those
-- that its workers have.
local function filled_places(pool, run, agent)
  local filled = {}
  for i = 1, #agent.queues do
    local queue = agent.queues[i]
    if not run.unfilled[queue] then
      local place = open_place(pool, run, 'queue:' .. queue)
      if count_left(place) > 0 then filled[#filled + 1] = place end
    end
    local scopes = run.scopes[queue]
    for j = 1, scopes and #scopes or 0, 2 do
      local place = open_held(pool, run, scopes[j])
      if count_left(place) > 0 then
        agent.digests = agent.digests or live_versions(pool, agent.name)
        if not any_refuses(scopes[j + 1], agent.digests) then filled[#filled + 1] = place end
      end
    end
  end
  return filled
end

-- Returns id and score of the first task of a place that the call has not looked at, or nil. Reads `each` tasks at once, or
-- `ahead` of a queue that others share.
local function first_of(pool, place, each, ahead)
  while true do
    local id = place.heads[place.at]
    if not id then
      if place.read >= place.count then return nil end
      -- A task with a key changes what stands behind it.
      local last = place.read + (place.changes and 1 or math.max(each, place.shared and ahead or 0)) - 1
      place.heads, place.at = redis.call('ZRANGE', pool .. ':' .. place.name, place.read, last, 'WITHSCORES'), 1
      place.read = last + 1
    elseif place.awaited[id] then
      place.at = place.at + 2
    else
      return id, place.heads[place.at + 1]
    end
  end
end

-- Returns the place with the best task that the call has not looked at, its id and its score; nil without one.
local function best_of(pool, filled, each, ahead)
  if #filled == 1 then return filled[1], first_of(pool, filled[1], each, ahead) end
  local best, best_id, best_score, best_order
  for i = 1, #filled do
    local id, score = first_of(pool, filled[i], each, ahead)
    local order = tonumber(score)
    if id and (not best or order < best_order or (order == best_order and id < best_id)) then
      best, best_id, best_score, best_order = filled[i], id, score, order
    end
  end
  return best, best_id, best_score
end

-- The fields of waiting tasks that matter here.
local waiting_fields = ',fails,deaths,by,ttl,idem,skill,out,requeued,lane,group,refused,queue,session,fair,rank,joined,budget,unfunded,funds,due,at,was,-after,-followers,-later,-need,'

-- The fields that waiting tasks of this call had, by their number.
local waiting_layouts = {}

-- Returns state, generation and envelope of a task, and a table of its other fields.
local function read_waiting(task_key)
  -- A plain task in its first attempt has these three fields, or these and large arguments.
  local fields = redis.call('HLEN', task_key)
  if fields == 3 then return read_task(task_key, 'state', 'gen', 'env'), plain end
  if fields > 3 and fields <= 12 then
    local found, task = read_alike(task_key, fields, ',state,gen,env,', waiting_fields, waiting_layouts)
    if found then return found, task end
  end
  if fields == 4 and redis.call('HEXISTS', task_key, 'args') == 1 then
    return read_task(task_key, 'state', 'gen', 'env'), with_arguments
  end
  local found = read_task(task_key, 'state', 'gen', 'env', 'fails', 'deaths', 'by', 'ttl', 'idem', 'skill',
    'out', 'requeued', 'lane', 'group', 'refused', 'queue', 'session', 'fair', 'rank', 'joined', 'budget', 'unfunded', 'funds')
  return found, {fails = found.fails, deaths = found.deaths, by = found.by, ttl = found.ttl, idem = found.idem,
    skill = found.skill, out = found.out, requeued = found.requeued, lane = found.lane,
    group = found.group, refused = found.refused, queue = found.queue, session = found.session, fair = found.fair,
    rank = found.rank, joined = found.joined, budget = found.budget, unfunded = found.unfunded, funds = found.funds}
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

-- Marks an agent that has no room for tasks that wait for it (protocol rule 6).
local function mark_agent(pool, agent)
  mark_full(pool, agent.name, agent.slots, agent.backlog, agent.mark)
  if agent.more_awaited then mark_awaited(pool, agent.name) end
end

-- Holds tasks back until their scope ends: a stop, versions that refused them, or a budget without room.
local function hold_tasks(pool, run, scope, scored)
  -- What the call takes out of the same place is removed before.
  local opened = run.places['held:' .. scope]
  if opened then close_place(pool, run, opened) end
  put_held(pool, run.types, scope, scored, run.now)
  local _, queue = parse_version_scope(scope)
  if queue and list_version_scope(pool, scope, run.now_ms) then
    -- Another agent may have another version.
    notify_supervisor(pool, 'queue:' .. queue)
  end
end

-- Returns how many starts the limits of an agent allow, of `want`, when the next slot opens in us (0: unknown), and the
-- limits whose provider is tried.
local function limited_room(pool, run, limits, want)
  local shut = run.shut[limits]
  if shut then return 0, shut end
  local room, next_free, trials = limit_room(pool, limits, run.now, want)
  -- They stay shut for the other agents of the call.
  if room <= 0 and want > 0 then run.shut[limits] = next_free end
  return room, next_free, trials
end

-- Moves the best ready tasks of an agent's queues to its inbox: as many as its room, its limits, `most` and the bytes of a
-- call allow. Changes `agent.room`. Returns the result and, for `limited`, when a limit opens in us (0: unknown):
-- `done`, no task is left for the agent; `full`, tasks are left and no room is, so that the caller marks the agent;
-- `limited`, tasks are left and its limits hold them back; `more`, tasks and room are left.
local function fill_inbox(pool, run, agent, most)
  local filled = filled_places(pool, run, agent)
  if #filled == 0 then return 'done' end
  -- The end of the pause brings the supervisor back, as the opening of a limit does.
  if agent.held_us > 0 then return 'limited', agent.held_us end
  -- Awaited tasks go into the slots that parents lend, before the others (protocol rule 32).
  local lent, deep = run.lends[agent.name] ~= false and lent_slots(pool, agent.name), {}
  if lent then
    close_queues(pool, run, agent)
    filled = filled_places(pool, run, agent)
    local places = inbox_room(pool, agent.name, agent.slots, agent.backlog, 0)
    local looked
    deep, agent.more_awaited, looked = awaited_tasks(pool, agent.queues, lent, places, most)
    -- Ten look-ups cost as much as a task that is assigned.
    run.looked = run.looked + looked / 10
  end
  local first = #deep / 3
  local limits, want, next_free = agent.limits, math.min(agent.room, most) - first, 0
  local trials
  if limits ~= '' and (want > 0 or first > 0) then
    -- A limited agent has no backlog. Assigns half of its slots, so that its workers run one half and fetch the other.
    want = math.min(math.max(want, 0) + first, math.ceil(agent.slots / 2))
    want, next_free, trials = limited_room(pool, run, limits, want)
    first = math.min(first, want)
    want = want - first
  end
  if want <= 0 and first == 0 then
    if agent.room <= 0 then return 'full' end
    if agent.more_awaited then mark_awaited(pool, agent.name) end
    return 'limited', next_free
  end
  want = math.max(want, 0)

  -- Without `want` there is room for awaited tasks only.
  local each, ahead = want, run.ahead
  if #filled > 1 and want > 0 then
    local most_read = math.max(1, math.floor(1000 / #filled))
    each, ahead = math.min(want, most_read), math.min(ahead, most_read)
  end
  local grants, held, parked, suspects = {}, {}, {}, {}
  local assigned = 0
  local i, last = 0, first + each
  while i < last do
    if assigned >= first + want or run.bytes >= assign_bytes then break end
    i = i + 1
    local place, id, score
    if i <= first then
      place, id, score = open_place(pool, run, deep[3 * i]), deep[3 * i - 2], deep[3 * i - 1]
      place.awaited[id] = true
      redis.call('ZREM', pool .. ':awaited:' .. string.sub(place.name, 7), id)
    else
      place, id, score = best_of(pool, filled, each, ahead)
      if not id then break end
      place.at = place.at + 2
    end
    run.looked = run.looked + 1
    local task_key = pool .. ':task:' .. id
    --@row found: state gen env
    local found, task = read_waiting(task_key)
    local scope, flow
    if task.fair and found.state ~= 'ready' then
      flow = flow_of(task.queue or skill_queue(found.env), task.fair, task.rank)
    elseif task.fair then
      local met = id
      flow, id, score = choose_task(pool, run, place, id, score, task, found.env)
      if id and id ~= met then
        task_key = pool .. ':task:' .. id
        found, task = read_waiting(task_key)
      end
    end
    local before = assigned
    if not id then
      -- Its flow rests: as many tasks of its key run as may.
    elseif found.state ~= 'ready' then
      -- An index entry that an interrupted script left behind; the record decides.
    elseif task.by and tonumber(task.by) <= run.now_ms then
      task.gen = found.gen
      end_task(pool, run.ending, id, task, 'expired', lifetime(task.ttl, nil, task.idem), {'reason', 'did not start in time'})
      stop_waiting(pool, run.ending, id, task.queue, found.env)
      run.expiring[#run.expiring + 1] = id
    elseif task.skill and not agent.skilled[task.skill] then
      parked[#parked + 1] = score
      parked[#parked + 1] = id
    else
      -- A task that a stop or these versions hold back waits with its like, so that it does not block the queue (protocol
      -- rules 7 and 28).
      scope = run.any_active and stopped_scope(pool, run.sessions, task.skill, id, found.env) or nil
      if not scope and task.refused then scope = refusing_scope(pool, run, agent, task, found.env) end
      if scope then
        enqueue(held, scope, score, id)
        last = last < most_looked and last + 1 or last
      elseif task.group then
        -- Workers with room for it take it (`take_suspects`).
        enqueue(suspects, task.queue or skill_queue(found.env), score, id)
        if task.group == '0' then redis.call('HSETNX', task_key, 'alone', run.now_text) end
      else
        local generation = run.now_text
        if tonumber(found.gen) >= run.now_ms then generation = integer(next_generation(found.gen, run.now_ms)) end
        if task.budget or agent.adds_budgets or task.funds then
          scope = refusing_budget(pool, run.ending, agent, id, task, place.name, generation)
        end
        if scope then
          enqueue(held, scope, score, id)
          -- The tasks behind it do not wait for the next call.
          last = last < most_looked and last + 1 or last
        else
          run.bytes = run.bytes + #found.env
          put_entry(pool, agent.name, id, score, generation, found.env, task)
          if weigh(id, #found.env) > 0 or (task ~= plain and is_apart(found.env)) then
            collect_bytes(pool, run.ending.bytes, id, task.queue, found.env, -1)
          end
          if limits ~= '' then grants[#grants + 1] = id .. ':' .. generation end
          if task.by then run.expiring[#run.expiring + 1] = id end
          assigned = assigned + 1
        end
      end
    end
    if not flow then
      place.gone[#place.gone + 1] = id
    elseif id then
      if string.sub(place.name, 1, 6) ~= 'queue:' then place.gone[#place.gone + 1] = id end
      local _, _, queue = parse_flow(flow)
      end_turn(pool, run, flow, id, assigned > before)
      reopen_place(pool, run, 'queue:' .. queue)
    end
  end
  if #grants > 0 then take_slots(pool, limits, run.now, grants, trials) end
  for scope, scored in pairs(held) do hold_tasks(pool, run, scope, scored) end
  for queue, scored in pairs(suspects) do put_suspects(pool, queue, scored) end
  if next(suspects) then
    run.any_suspects = true
    notify_of_suspects(pool, agent.name)
  end
  if #parked > 0 then redis.call('ZADD', pool .. ':parked:' .. agent.name, unpack(parked)) end
  run.assigned = run.assigned + assigned
  agent.room = agent.room - assigned
  local remain = false
  for i = 1, #filled do remain = remain or count_left(filled[i]) > 0 end
  if not remain then return 'done' end
  return agent.room > 0 and 'more' or 'full'
end

-- Stores what a call has collected.
local function flush_assigning(pool, run)
  for i = 1, #run.opened do
    local place = run.places[run.opened[i]]
    if place then close_place(pool, run, place) end
  end
  if #run.expiring > 0 then redis.call('ZREM', pool .. ':expiring', unpack(run.expiring)) end
  if run.assigned > 0 then run.ending.counts.assigned = run.assigned end
  flush_endings(pool, run.ending)
end
