#!lua flags=allow-oom
-- Assigns suspects to a worker whose process has room for them: tasks that may share a process with few tasks that died
-- before (protocol rule 8). Takes none while the agent's inbox has unread entries, because these come first.
-- returns: left (1: suspects of the agent wait), entries as XREADGROUP returns them,
--          then per entry: group depth (with how many suspects of this or a greater depth it may share the process)
-- repeat: takes further suspects; the worker finds the first ones among its own lost entries
local pool    = KEYS[1]                   -- key: root of the pool's slot
local worker  = ARGV[1]                   -- str: worker
local agent   = ARGV[2]                   -- str: agent
local limit   = tonumber(ARGV[3])         -- int: at most this many (free slots of the caller)
local running = cmsgpack.unpack(ARGV[4])  -- rows: depth group
local idle    = ARGV[5]                   -- str: 1 = the process runs nothing
local now_arg = ARGV[6]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include envelope: depth_of
--@include record: read_task, next_generation
--@include desired: is_active, agent_blocked, held_until, any_session_stopped, stopped_scope
--@include queue: put_ready, put_held, remove_suspects, notify_of_kept_slots
--@include limit: limit_room, take_slots
--@include inbox: put_entry
--@include version: any_refuses, live_versions
--@include ending: start_endings, stop_waiting, flush_endings
--@include share: ready_place, share_of, may_start, take_place
--@include budget: refusing_budget

local look_at, look_at_most, patience_ms, call_bytes = 200, 500, 60000, 1048576
local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local agent_key, inbox_key = pool .. ':agent:' .. agent, pool .. ':inbox:' .. agent
if redis.call('EXISTS', pool .. ':suspects') == 0 then return {0, {}} end
local spec = redis.call('HMGET', agent_key, 'slots', 'skills', 'limits', 'funds')
local any_active = redis.call('EXISTS', pool .. ':desired') == 1
local sessions = any_active and any_session_stopped(pool)

local queues, skilled = {'agent:' .. agent}, {}
for skill in string.gmatch(spec.skills or '', '%S+') do
  queues[#queues + 1] = 'skill:' .. skill
  skilled[skill] = true
end
local found, open, left = {}, {}, 0
for i = 1, #queues do
  local queue = queues[i]
  local heads = redis.call('ZRANGE', pool .. ':suspects:' .. queue, 0, look_at - 1, 'WITHSCORES')
  if #heads > 0 then
    left = 1
    if not (any_active and (is_active(pool, 'stop:' .. queue) or is_active(pool, 'pause:queue:' .. queue))) then
      open[#open + 1] = {queue = queue, heads = heads}
    end
  end
end
-- The queues take turns, so that none keeps the others from the look.
for j = 1, 2 * look_at, 2 do
  for i = 1, #open do
    local heads = open[i].heads
    if heads[j] and #found < look_at_most then
      found[#found + 1] = {id = heads[j], score = heads[j + 1], queue = open[i].queue}
    end
  end
end
local blocked = any_active and (agent_blocked(pool, agent) or held_until(pool, 'hold:agent:' .. agent, math.floor(now / 1000)) > 0)
if #found == 0 or limit == 0 or tonumber(spec.slots or 0) == 0 or blocked then
  return {left, {}}
end
local group = redis.call('EXISTS', inbox_key) == 1 and redis.call('XINFO', 'GROUPS', inbox_key)[1]
if not group then return {left, {}} end
for i = 1, #group, 2 do
  if group[i] == 'last-delivered-id' and #redis.call('XRANGE', inbox_key, '(' .. group[i + 1], '+', 'COUNT', 1) > 0 then
    return {left, {}}
  end
end
local limits = spec.limits or ''
local want, _, trials = limit, 0, nil
if limits ~= '' then want, _, trials = limit_room(pool, limits, now, limit) end
for i = 1, #found do
  local one = found[i]
  local task = read_task(pool .. ':task:' .. one.id, 'state', 'gen', 'env', 'fails', 'deaths', 'skill', 'out', 'requeued',
    'group', 'alone', 'blamed', 'refused', 'fair', 'rank', 'budget', 'funds', 'unfunded')
  one.task, one.order = task, tonumber(one.score)
  one.group, one.blamed = tonumber(task.group) or 0, tonumber(task.blamed) or 0
end
-- Large groups first, because they free the most tasks in a given time. Tasks that died as the only suspect come last.
table.sort(found, function(a, b)
  if a.group ~= b.group then return a.group > b.group end
  if a.blamed ~= b.blamed then return a.blamed < b.blamed end
  if a.order ~= b.order then return a.order < b.order end
  return a.id < b.id
end)

-- Returns whether a suspect has room. It shares its place with those that its parents may wait for: none of these waits
-- for it, so families do not lock each other out.
local function fits(depth, most)
  local beside = 0
  for i = 1, #running do
    if running[i].depth >= depth then
      beside = beside + 1
      most = math.min(most, running[i].group)
    end
  end
  return beside < most
end

local taken, removed, ready, held, grants, bytes = {}, {}, {}, {}, {}, 0
-- Collects a value in a list of the table.
local function collect(lists, name, ...)
  local list = lists[name]
  if not list then
    list = {}
    lists[name] = list
  end
  for i = 1, select('#', ...) do list[#list + 1] = (select(i, ...)) end
end

local ending = start_endings(now)
local offer = {funds = spec.funds}

-- Returns the scope of the first budget without room for the start of a suspect, or nil: it is taken from all of them.
local function lacking_budget(record, queue, id, generation)
  --@row record: state gen env fails deaths skill out requeued group alone blamed refused fair rank budget funds unfunded
  if not record.budget and not record.funds and not offer.funds then return nil end
  local task = {budget = record.budget, funds = record.funds, unfunded = record.unfunded, skill = record.skill}
  return refusing_budget(pool, ending, offer, id, task, queue, generation)
end

for i = 1, #found do
  if #taken >= want or bytes >= call_bytes then break end
  local id, score, queue = found[i].id, found[i].score, found[i].queue
  --@row record: state gen env fails deaths skill out requeued group alone blamed refused fair rank budget funds unfunded
  local record = found[i].task
  local scope = record.state == 'ready' and any_active and stopped_scope(pool, sessions, record.skill, id, record.env)
  if record.state ~= 'ready' then
    -- An index entry that an interrupted script left behind; the record decides.
    collect(removed, queue, id)
  elseif scope or not record.group or (record.skill and not skilled[record.skill]) then
    -- `assign` finds the right place.
    collect(ready, ready_place(queue, record.fair, record.rank), score, id)
    collect(removed, queue, id)
  elseif record.refused and any_refuses(record.refused, live_versions(pool, agent)) then
    -- Another agent with the skill takes it (protocol rule 28).
  elseif record.fair and not may_start(pool, record.fair, (select(2, share_of(pool, record.fair)))) then
    -- Its key has as many tasks running as it may.
  else
    local depth, most, alone = depth_of(record.env), tonumber(record.group) or 1, false
    if most == 0 and idle == '1' and #running == 0 then
      alone = true
    elseif most == 0 then
      -- A process that is never idle runs it too, in the end.
      most = now_ms - (tonumber(record.alone) or now_ms) >= patience_ms and 1 or 0
    end
    local generation = integer(next_generation(record.gen, now_ms))
    local has_place = alone or fits(depth, most)
    local lacking = has_place and lacking_budget(record, queue, id, generation)
    if lacking then
      -- It waits beside the suspects, so that no slot is kept for it.
      collect(held, lacking, score, id)
      collect(removed, queue, id)
    elseif has_place then
      local task = {fails = record.fails, deaths = record.deaths, requeued = record.requeued, out = record.out}
      bytes = bytes + put_entry(pool, agent, id, score, generation, record.env, task)
      stop_waiting(pool, ending, id, queue, record.env)
      running[#running + 1] = {depth, most}
      taken[#taken + 1] = {most, depth}
      collect(removed, queue, id)
      if record.fair then take_place(pool, record.fair, id) end
      if limits ~= '' then grants[#grants + 1] = id .. ':' .. generation end
      if alone then break end
    end
  end
end
if #grants > 0 then take_slots(pool, limits, now, grants, trials) end
for place, scored in pairs(ready) do put_ready(pool, place, scored) end
for lacking, scored in pairs(held) do put_held(pool, {}, lacking, scored, now) end
for queue, ids in pairs(removed) do
  remove_suspects(pool, queue, ids)
  notify_of_kept_slots(pool, queue)
end
local answer = {left, {}}
if #taken > 0 then
  -- All entries before these are read, so the worker gets exactly these.
  answer[2] = redis.call('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', #taken, 'STREAMS', inbox_key, '>')[1][2]
  for i = 1, #taken do answer[2 * i + 1], answer[2 * i + 2] = taken[i][1], taken[i][2] end
  ending.counts.assigned = #taken
end
if #taken > 0 or ending.budgets then flush_endings(pool, ending) end
return answer
