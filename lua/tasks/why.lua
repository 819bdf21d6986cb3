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
--@include now_us
--@include skill_queue
--@include next_start
--@include stopped_scope
--@include is_active
--@include session_of
--@include forgiven_failures

local task_key = pool .. ':task:' .. id
local found = redis.call('HMGET', task_key, 'state', 'gen', 'at', 'cancel', 'reason', 'fails', 'deaths', 'left', 'ended',
  'skill', 'queue', 'env', 'progress', 'lane', 'requeued')
local state, at, env = found[1], found[3], found[12]
if not state then return {} end
local now = now_us(now_arg)
local queue = found[11] or skill_queue(env)
local skill = found[10] or string.match(queue, '^skill:(.*)$') or ''
local death = found[7] and redis.call('HGET', task_key, 'death:' .. found[7])
local fails_forgiven, deaths_forgiven = forgiven_failures(found[15])
local task = {state, found[2], at, found[4], found[5], found[6], found[7], found[8], death, found[9], skill, queue, found[13],
  fails_forgiven, deaths_forgiven}
local answer = {now, redis.call('GET', pool .. ':leader'), task, {}, {}, {}}
local place, agents, active = answer[4], answer[5], answer[6]
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
  for name in string.gmatch(spec[4] or '', '%S+') do limits[#limits + 1] = {name, next_start(pool, name, now, ahead)} end
  local skilled = string.find(' ' .. (spec[3] or '') .. ' ', ' ' .. skill .. ' ', 1, true) and 1 or 0
  local _, named = string.find(' ' .. (spec[7] or ''), ' ' .. skill .. '=', 1, true)
  local terms = named and string.match(spec[7], '^%d+/%d+', named) or false
  if skilled == 0 and not offered then offered = offers(agent) end
  agents[#agents + 1] = {agent, redis.call('ZSCORE', pool .. ':agents', agent), spec[1], spec[2], spec[5], spec[6], skilled,
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
    local offered = offers(known[i])
    if offered[2] + offered[3] > 0 then look_at(known[i], 0, offered) end
  end
end

local function look_at_worker(agent, worker)
  local record = redis.call('HMGET', pool .. ':worker:' .. worker, 'host', 'pid')
  place[4] = redis.call('ZSCORE', pool .. ':workers', worker)
  place[5], place[6] = record[1], record[2]
  place[7] = redis.call('HEXISTS', pool .. ':agent:' .. agent .. ':workers', worker)
end

if state == 'ready' then
  local rank = redis.call('ZRANK', pool .. ':queue:' .. queue, id)
  local addressed = string.match(queue, '^agent:(.*)$')
  place[1] = rank
  place[2] = addressed and redis.call('ZSCORE', pool .. ':parked:' .. addressed, id) and 1 or 0
  local scope = any_active and stopped_scope(pool, true, skill, env)
  place[3] = scope and redis.call('ZSCORE', pool .. ':held:' .. scope, id) and 1 or 0
  look_for_agents(rank or 0)
elseif state == 'waiting' then
  local lane_key = pool .. ':lane:' .. found[14]
  local owner = redis.call('ZRANGE', lane_key, 0, 0)[1]
  place[1], place[2] = redis.call('ZRANK', lane_key, id), owner
  place[3], place[4] = owner and redis.call('HGET', pool .. ':task:' .. owner, 'state'), found[14]
elseif state == 'scheduled' then
  place[1] = redis.call('ZSCORE', pool .. ':scheduled', id)
  place[2] = found[6] and env
  if at then look_at(string.match(at, '^%S+'), 0) end
elseif state == 'awaiting_input' then
  place[1], place[2] = redis.call('ZSCORE', pool .. ':asking', id), redis.call('HGET', task_key, 'asks')
  place[3] = redis.call('HGET', task_key, 'ask:' .. place[2])
elseif state == 'assigned' then
  local agent, entry = string.match(at, '^(%S+) (%S+)')
  local inbox_key = pool .. ':inbox:' .. agent
  place[1], place[2] = 0, false
  if redis.call('EXISTS', inbox_key) == 1 and #redis.call('XINFO', 'GROUPS', inbox_key) > 0 then
    place[1] = #redis.call('XRANGE', inbox_key, entry, entry)
    local pending = redis.call('XPENDING', inbox_key, 'workers', entry, entry, 1)[1]
    if pending then
      place[2], place[3] = pending[2], pending[3]
      look_at_worker(agent, pending[2])
    end
  end
  look_at(agent, 0)
end
note_active('stop:all')
note_active('stop:skill:' .. skill)
note_active('pause:queue:' .. queue)
local session = any_active and session_of(env)
if session then note_active('stop:session:' .. session) end
return answer
