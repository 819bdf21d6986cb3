#!lua flags=no-writes
-- Reads what one task waits for: its place, and what may keep it there. Reads at most `limit` agents, and ten
-- times as many workers when no agent has the skill.
-- returns: nothing (unknown task), else
--   now_us, leader,
--   task: state gen at cancel reason fails deaths left death ended skill queue progress forgiven_fails forgiven_deaths
--         refused (1) missing (of a task that awaits or joins others, or runs after them: how many have not ended, and up to ten of them)
--         budget (of a task that waits for one: its name, the four amounts that it needs, why there is no room, its state),
--   place: scheduled: due_ms, envelope of a retry | awaiting_input: due_ms, number, question | joining: due_ms, join
--          | ready: rank in its queue, parked (1), held by a stop or by versions of its skill (1), -1 or, of a suspect,
--            its group (0: alone), then of a task that waits behind others of its key: the key, rank among them, tasks of
--            the key that run, how many may (0: any number)
--          | waiting: rank in its lane, the task that has the turn, its state, lane
--          | assigned: in the inbox (1), worker, idle_ms, seen_ms, host, pid, registered (1),
--   agents, each: name seen_ms slots backlog lease_ms grace_ms skilled (1) workers inbox terms limits offers
--     refusing (up to ten live workers whose version of the skill refused it),
--     limits, each: name, and of a defined limit: count window_us used next_us,
--     offers, if not skilled: live workers, those with the skill, draining ones with the skill, some without it,
--   active, each: slot value, of the active stops and pauses that concern the task,
--   blocked, each: name, state, end in ms (0: until it is cleared) and stored value of a blocked provider among the limits
-- repeat: reads again
local pool    = KEYS[1]            -- key: root of the pool's slot
local id      = ARGV[1]            -- str: task
local limit   = tonumber(ARGV[2])  -- int: read at most this many agents
local now_arg = ARGV[3]            -- time: test override, microseconds
--@include time: now_us
--@include envelope: skill_queue, session_of, family_of
--@include version: version_scope, any_refuses
--@include record: read_task, forgiven_failures, has_ended
--@include desired: is_active, held_until, stopped_scope
--@include limit: next_start
--@include blocked: read_blocked
--@include share: flow_of, share_of
--@include join: parse_join
--@include budget: nothing, waiting_key, start_budgets, read_budget, lacks, whole_amounts, show_budgets

local task_key = pool .. ':task:' .. id
local task = read_task(task_key, 'state', 'gen', 'at', 'cancel', 'reason', 'fails', 'deaths', 'left', 'ended',
  'skill', 'queue', 'env', 'progress', 'lane', 'requeued', 'refused', 'awaits', 'fair', 'rank', 'join', 'need', 'budget')
local state, at, env = task.state, task.at, task.env
if not state then return {} end
local now = now_us(now_arg)
local queue = task.queue or skill_queue(env)
local skill = task.skill or string.match(queue, '^skill:(.*)$') or ''
local death = task.deaths and redis.call('HGET', task_key, 'death:' .. task.deaths)
local fails_forgiven, deaths_forgiven = forgiven_failures(task.requeued)

-- Counts the tasks that the attempt waits for and that have not ended, and names up to ten of them (protocol rules 32 and 37).
local function missing_tasks()
  if state == 'joining' then
    local joins_key = pool .. ':joins:' .. id
    if redis.call('TYPE', joins_key)['ok'] ~= 'zset' then return {0} end
    return {redis.call('ZCARD', joins_key), unpack(redis.call('ZRANGE', joins_key, 0, 9))}
  end
  if state == 'awaiting_tasks' then
    local after_key = pool .. ':after:' .. id
    if redis.call('TYPE', after_key)['ok'] ~= 'zset' then return {0} end
    return {redis.call('ZCARD', after_key), unpack(redis.call('ZRANGE', after_key, 0, 9))}
  end
  local generation, ids = string.match(task.awaits or '', '^(%d+) (.*)$')
  if state ~= 'assigned' or generation ~= task.gen then return {} end
  local missing = {0}
  for id in string.gmatch(ids, '%S+') do
    local its_state = redis.call('HGET', pool .. ':task:' .. id, 'state')
    if its_state and not has_ended(its_state) then
      missing[1] = missing[1] + 1
      if #missing <= 10 then missing[#missing + 1] = id end
    end
  end
  return missing
end

local facts = {state, task.gen, at, task.cancel, task.reason, task.fails, task.deaths, task.left, death, task.ended, skill,
  queue, task.progress, fails_forgiven, deaths_forgiven, task.refused and 1 or 0, missing_tasks(), {}}
local place, agents, active, blocked, seen = {}, {}, {}, {}, {}
local any_active = redis.call('EXISTS', pool .. ':desired') == 1
local looked, holder = 0, nil

local function note_active(slot)
  if any_active and is_active(pool, slot) then
    active[#active + 1] = slot
    active[#active + 1] = redis.call('HGET', pool .. ':desired', slot)
  end
end

local function note_held(slot)
  if any_active and held_until(pool, slot, math.floor(now / 1000)) > 0 then note_active(slot) end
end

local function note_blocked(name)
  if seen[name] then return end
  seen[name] = true
  local its_kind, until_ms, told = read_blocked(pool, name, math.floor(now / 1000))
  if its_kind and its_kind ~= 'trial' then blocked[#blocked + 1] = {name, its_kind, until_ms, told} end
end

-- Counts the workers of an agent by skill, when the agent itself does not offer it.
local function offers(agent)
  local workers_key = pool .. ':agent:' .. agent .. ':workers'
  local names, rows = redis.call('HKEYS', workers_key), redis.call('HVALS', workers_key)
  local live, having, draining, lacking = 0, 0, 0, {}
  for i = 1, #rows do
    local slots, skills = string.match(rows[i], '^(%d+) %d+ ?(.*)$')
    local has = string.find(' ' .. skills .. ' ', ' ' .. skill .. ' ', 1, true)
    if slots ~= '0' then
      live = live + 1
      if has then having = having + 1 elseif #lacking < 10 then lacking[#lacking + 1] = names[i] end
    elseif has then
      draining = draining + 1
    end
  end
  looked = looked + #rows
  return {live, having, draining, lacking}
end

-- Names the live workers of an agent whose version of the skill refused the task.
local function refusing_workers(agent)
  local found = {}
  if not task.refused then return found end
  local workers_key = pool .. ':agent:' .. agent .. ':workers'
  local names, rows = redis.call('HKEYS', workers_key), redis.call('HVALS', workers_key)
  for i = 1, #names do
    local digests = {}
    local versions = redis.call('HGET', pool .. ':worker:' .. names[i], 'versions:' .. agent) or ''
    for digest in string.gmatch(versions, '=(%S+)') do digests[digest] = true end
    if #found < 10 and not string.match(rows[i], '^0 ') and any_refuses(task.refused, digests) then found[#found + 1] = names[i] end
  end
  looked = looked + #rows
  return found
end

local function look_at(agent, ahead, offered)
  local agent_key = pool .. ':agent:' .. agent
  local spec = redis.call('HMGET', agent_key, 'slots', 'backlog', 'skills', 'limits', 'lease_ms', 'grace', 'terms')
  note_active('stop:agent:' .. agent)
  note_active('pause:agent:' .. agent)
  note_held('hold:agent:' .. agent)
  local limits = {}
  for name in string.gmatch(spec.limits or '', '%S+') do
    limits[#limits + 1] = {name, next_start(pool, name, now, ahead)}
    note_held('hold:limit:' .. name)
    note_blocked(name)
  end
  local skilled = string.find(' ' .. (spec.skills or '') .. ' ', ' ' .. skill .. ' ', 1, true) and 1 or 0
  local _, named = string.find(' ' .. (spec.terms or ''), ' ' .. skill .. '=', 1, true)
  local terms = named and string.match(spec.terms, '^%d+/%d+', named) or false
  if skilled == 0 and not offered then offered = offers(agent) end
  local seen_ms = redis.call('ZSCORE', pool .. ':agents', agent)
  local workers, inbox = redis.call('HLEN', agent_key .. ':workers'), redis.call('XLEN', pool .. ':inbox:' .. agent)
  local lease_ms = holder and redis.call('HGET', pool .. ':leases:' .. agent, holder) or spec.lease_ms
  agents[#agents + 1] = {agent, seen_ms, spec.slots, spec.backlog, lease_ms, spec.grace, skilled, workers, inbox, terms,
    limits, offered or {}, refusing_workers(agent)}
end

local function look_for_agents(ahead)
  local addressed = string.match(queue, '^agent:(.*)$')
  if addressed then return look_at(addressed, ahead) end
  local names = redis.call('ZRANGE', pool .. ':skills:' .. skill, 0, limit - 1)
  -- Several agents share the tasks ahead; how they divide them is unknown.
  if #names > 1 then ahead = 0 end
  for i = 1, #names do look_at(names[i], ahead) end
  if #names > 0 then return end
  -- No agent offers the skill, but some worker may have it.
  local known = redis.call('ZRANGE', pool .. ':agents', 0, limit - 1, 'REV')
  for i = 1, #known do
    if looked >= 10 * limit then return end
    --@row offered: live having draining
    local offered = offers(known[i])
    if offered.having + offered.draining > 0 then look_at(known[i], 0, offered) end
  end
end

local function look_at_worker(agent, worker)
  local record = redis.call('HMGET', pool .. ':worker:' .. worker, 'host', 'pid')
  --@row place: inbox worker idle_ms seen_ms host pid registered
  place.seen_ms = redis.call('ZSCORE', pool .. ':workers', worker)
  place.host, place.pid = record.host, record.pid
  place.registered = redis.call('HEXISTS', pool .. ':agent:' .. agent .. ':workers', worker)
end

if state == 'ready' then
  local rank = redis.call('ZRANK', pool .. ':queue:' .. queue, id)
  local addressed = string.match(queue, '^agent:(.*)$')
  --@row place: rank parked held group key behind taken at_most
  place.rank = rank
  place.parked = addressed and redis.call('ZSCORE', pool .. ':parked:' .. addressed, id) and 1 or 0
  local scope = any_active and stopped_scope(pool, true, skill, id, env)
  place.held = scope and redis.call('ZSCORE', pool .. ':held:' .. scope, id) and 1 or 0
  if task.refused and redis.call('ZSCORE', pool .. ':held:' .. version_scope(task.refused, queue), id) then place.held = 1 end
  local suspected = redis.call('ZSCORE', pool .. ':suspects:' .. queue, id)
  local wanted, amounts = string.match(task.need or '', '^(%S+) (.*)$')
  local held_key = wanted and waiting_key(pool, wanted)
  local waits = wanted and redis.call('ZSCORE', held_key, id)
  if waits then place.held = 1 end
  if waits or (wanted and suspected) then
    local known, need = start_budgets(now), whole_amounts(amounts)
    local budget = read_budget(pool, known, wanted)
    facts[18] = {wanted, amounts, lacks(budget, need, nothing, true) or '', show_budgets(known, {wanted})}
  end
  place.group = suspected and tonumber(redis.call('HGET', task_key, 'group') or 1) or -1
  local behind = task.fair and not rank
    and redis.call('ZRANK', pool .. ':share:wait:' .. flow_of(queue, task.fair, task.rank), id)
  if behind then
    place.key, place.behind = task.fair, behind
    place.taken = redis.call('SCARD', pool .. ':share:taken:' .. task.fair)
    place.at_most = select(2, share_of(pool, task.fair)) or 0
  end
  look_for_agents(rank or 0)
elseif state == 'waiting' then
  local lane_key = pool .. ':lane:' .. task.lane
  local owner = redis.call('ZRANGE', lane_key, 0, 0)[1]
  --@row place: rank owner owner_state lane
  place.rank, place.owner = redis.call('ZRANK', lane_key, id), owner
  place.owner_state, place.lane = owner and redis.call('HGET', pool .. ':task:' .. owner, 'state'), task.lane
elseif state == 'scheduled' then
  --@row place: due_ms envelope
  place.due_ms = redis.call('ZSCORE', pool .. ':scheduled', id)
  place.envelope = task.fails and env
  if at then look_at(string.match(at, '^%S+'), 0) end
elseif state == 'awaiting_input' then
  --@row place: due_ms number question
  place.due_ms, place.number = redis.call('ZSCORE', pool .. ':asking', id), redis.call('HGET', task_key, 'asks')
  place.question = redis.call('HGET', task_key, 'ask:' .. place.number)
elseif state == 'joining' then
  --@row place: due_ms join
  place.due_ms = redis.call('ZSCORE', pool .. ':joining', id)
  local _, number = parse_join(task.join)
  place.join = number and redis.call('HGET', task_key, 'join:' .. number) or false
elseif state == 'assigned' then
  local agent, entry = string.match(at, '^(%S+) (%S+)')
  local inbox_key = pool .. ':inbox:' .. agent
  --@row place: inbox worker idle_ms
  place.inbox, place.worker = 0, false
  if redis.call('EXISTS', inbox_key) == 1 and #redis.call('XINFO', 'GROUPS', inbox_key) > 0 then
    place.inbox = #redis.call('XRANGE', inbox_key, entry, entry)
    --@row pending: entry worker idle_ms
    local pending = redis.call('XPENDING', inbox_key, 'workers', entry, entry, 1)[1]
    if pending then
      place.worker, place.idle_ms = pending.worker, pending.idle_ms
      holder = pending.worker
      look_at_worker(agent, pending.worker)
    end
  end
  look_at(agent, 0)
end
note_active('stop:all')
note_active('stop:skill:' .. skill)
note_active('pause:queue:' .. queue)
local session = any_active and session_of(env)
if session then note_active('stop:session:' .. session) end
local family = any_active and family_of(id, env)
if family then note_active('stop:family:' .. family) end
return {now, redis.call('GET', pool .. ':leader'), facts, place, agents, active, blocked}
