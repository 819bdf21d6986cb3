#!lua flags=no-writes
-- Find what one task waits for: where it stands, and what could hold it back there. Reads only, and of nothing more than
-- `limit` agents, and ten times as many workers when nobody has its skill.
-- answers: nothing (unknown task), else
--   now_us, leader,
--   task: state gen at cancel reason fails deaths left death ended skill queue progress forgiven_fails forgiven_deaths,
--   place: scheduled: due_ms, envelope of a retry | awaiting_input: due_ms, number, question | ready: rank in its queue, parked (1),
--          held by a stop (1) | waiting: rank in its lane, the task that has the turn, its state, lane
--          | assigned: in the inbox (1), worker, idle_ms, seen_ms, host, pid, registered (1),
--   agents, each: name seen_ms slots backlog lease_ms grace_ms skilled (1) workers inbox terms limits offers,
--     limits, each: name, then count window_us used next_us of those that are defined,
--     offers, if not skilled: live workers, those that have the skill, draining ones that have it, some that lack it,
--   active, each: slot value, of the stops and pauses that concern it
-- repeat: looks again
local pool    = KEYS[1]            -- key: root of the pool's slot
local id      = ARGV[1]            -- str: task
local limit   = tonumber(ARGV[2])  -- int: look at so many agents at most
local now_arg = ARGV[3]            -- time: test override, microseconds
--@include time: now_us
--@include envelope: skill_queue, session_of
--@include record: read_task, forgiven_failures
--@include desired: is_active, stopped_scope
--@include limit: next_start

local task_key = pool .. ':task:' .. id
local found = read_task(task_key, 'state', 'gen', 'at', 'cancel', 'reason', 'fails', 'deaths', 'left', 'ended',
  'skill', 'queue', 'env', 'progress', 'lane', 'requeued')
local state, at, env = found.state, found.at, found.env
if not state then return {} end
local now = now_us(now_arg)
local queue = found.queue or skill_queue(env)
local skill = found.skill or string.match(queue, '^skill:(.*)$') or ''
local death = found.deaths and redis.call('HGET', task_key, 'death:' .. found.deaths)
local fails_forgiven, deaths_forgiven = forgiven_failures(found.requeued)
local task = {state, found.gen, at, found.cancel, found.reason, found.fails, found.deaths, found.left, death, found.ended, skill, queue, found.progress,
  fails_forgiven, deaths_forgiven}
local place, agents, active = {}, {}, {}
local any_active = redis.call('EXISTS', pool .. ':desired') == 1
local looked = 0

local function note_active(slot)
  if any_active and is_active(pool, slot) then
    active[#active + 1] = slot
    active[#active + 1] = redis.call('HGET', pool .. ':desired', slot)
  end
end

-- What the workers of an agent that does not offer the skill as a whole say of it, each for itself.
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

local function look_at(agent, ahead, offered)
  local agent_key = pool .. ':agent:' .. agent
  local spec = redis.call('HMGET', agent_key, 'slots', 'backlog', 'skills', 'limits', 'lease_ms', 'grace', 'terms')
  note_active('stop:agent:' .. agent)
  note_active('pause:agent:' .. agent)
  local limits = {}
  for name in string.gmatch(spec.limits or '', '%S+') do limits[#limits + 1] = {name, next_start(pool, name, now, ahead)} end
  local skilled = string.find(' ' .. (spec.skills or '') .. ' ', ' ' .. skill .. ' ', 1, true) and 1 or 0
  local _, named = string.find(' ' .. (spec.terms or ''), ' ' .. skill .. '=', 1, true)
  local terms = named and string.match(spec.terms, '^%d+/%d+', named) or false
  if skilled == 0 and not offered then offered = offers(agent) end
  agents[#agents + 1] = {agent, redis.call('ZSCORE', pool .. ':agents', agent), spec.slots, spec.backlog, spec.lease_ms, spec.grace, skilled,
    redis.call('HLEN', agent_key .. ':workers'), redis.call('XLEN', pool .. ':inbox:' .. agent), terms, limits, offered or {}}
end

local function look_for_agents(ahead)
  local addressed = string.match(queue, '^agent:(.*)$')
  if addressed then return look_at(addressed, ahead) end
  local names = redis.call('ZRANGE', pool .. ':skills:' .. skill, 0, limit - 1)
  -- Several share what stands before it; how they do is not known.
  if #names > 1 then ahead = 0 end
  for i = 1, #names do look_at(names[i], ahead) end
  if #names > 0 then return end
  -- Nobody offers it as a whole: perhaps some worker has it all the same.
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
  --@row place: rank parked held
  place.rank = rank
  place.parked = addressed and redis.call('ZSCORE', pool .. ':parked:' .. addressed, id) and 1 or 0
  local scope = any_active and stopped_scope(pool, true, skill, env)
  place.held = scope and redis.call('ZSCORE', pool .. ':held:' .. scope, id) and 1 or 0
  look_for_agents(rank or 0)
elseif state == 'waiting' then
  local lane_key = pool .. ':lane:' .. found.lane
  local owner = redis.call('ZRANGE', lane_key, 0, 0)[1]
  --@row place: rank owner owner_state lane
  place.rank, place.owner = redis.call('ZRANK', lane_key, id), owner
  place.owner_state, place.lane = owner and redis.call('HGET', pool .. ':task:' .. owner, 'state'), found.lane
elseif state == 'scheduled' then
  --@row place: due_ms envelope
  place.due_ms = redis.call('ZSCORE', pool .. ':scheduled', id)
  place.envelope = found.fails and env
  if at then look_at(string.match(at, '^%S+'), 0) end
elseif state == 'awaiting_input' then
  --@row place: due_ms number question
  place.due_ms, place.number = redis.call('ZSCORE', pool .. ':asking', id), redis.call('HGET', task_key, 'asks')
  place.question = redis.call('HGET', task_key, 'ask:' .. place.number)
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
return {now, redis.call('GET', pool .. ':leader'), task, place, agents, active}
