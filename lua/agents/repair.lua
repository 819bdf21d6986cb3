#!lua flags=allow-oom
-- Checks the registry for contradictions; with `repair` resolves them. A live worker that is removed here registers
-- again at its next heartbeat. A repair also takes agents without a skill out of its `room:S`, which is no finding.
-- rows: `agent` or `skill`, and its name
-- codes: unlisted-agent (an agent with workers is missing from the index of agents) | unknown-worker (an agent counts a
--        worker that is not registered) | miscounted-agent (what the
--        workers of an agent offer is counted wrongly) | skill-index (the index of a skill lists other agents than those that have it, or a
--        version that no live worker has is not listed to be forgotten) | lent-slots (the sums of the slots that an agent
--        lends differ from what its workers state)
-- returns: per finding: row code repaired (1 or 0)
-- repeat: finds nothing that it has repaired
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: kind name
local repair  = ARGV[2]                   -- str: 1 = repair what is found
local limit   = tonumber(ARGV[3])         -- int: read at most this many agents of a skill
local now_arg = ARGV[4]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include key: has_type
--@include counter: increment_counters
--@include registry: recount_agent, notify_of_agent, offer_is_exact
--@include lent: recount_lent

local now = now_us(now_arg)
local agents_key, workers_key = pool .. ':agents', pool .. ':workers'
local types, answers, repaired = {}, {}, 0
local shared = {[agents_key] = 'zset', [workers_key] = 'zset', [pool .. ':queues'] = 'set', [pool .. ':doorbell'] = 'stream',
  [pool .. ':stats:TOTAL'] = 'hash', [pool .. ':stats:' .. integer(math.floor(now / 60000000))] = 'hash'}
local sound = true
for key, type in pairs(shared) do sound = has_type(types, key, type) and sound end
if not sound then return answers end
local may_repair = repair == '1'

local function note(row, code)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = row, code, may_repair and 1 or 0
  if may_repair then repaired = repaired + 1 end
end

local function check_agent(row, agent)
  local agent_key = pool .. ':agent:' .. agent
  local members_key = agent_key .. ':workers'
  if not has_type(types, agent_key, 'hash') or not has_type(types, members_key, 'hash') then return end
  if not has_type(types, pool .. ':offers:' .. agent, 'hash') or not has_type(types, pool .. ':leases:' .. agent, 'hash') then
    return
  end
  if types[agent_key] == 'none' and types[members_key] == 'none' then return end
  local workers, rows_of = redis.call('HKEYS', members_key), redis.call('HVALS', members_key)
  local gone = {}
  for i = 1, #workers do
    if not redis.call('ZSCORE', workers_key, workers[i]) or not string.match(rows_of[i], '^%d+ [01] ?') then
      gone[#gone + 1] = workers[i]
    end
  end
  if #workers > 0 and not redis.call('ZSCORE', agents_key, agent) then
    if may_repair then redis.call('ZADD', agents_key, integer(math.floor(now / 1000)), agent) end
    note(row, 'unlisted-agent')
  end
  local skills = redis.call('HGET', agent_key, 'skills') or ''
  for skill in string.gmatch(skills, '%S+') do
    local skill_key = pool .. ':skills:' .. skill
    if not has_type(types, skill_key, 'zset') then return end
    if not redis.call('ZSCORE', skill_key, agent) then
      if may_repair then redis.call('ZADD', skill_key, 0, agent) end
      note(row, 'skill-index')
    end
  end
  for i = 1, #gone do
    if may_repair then redis.call('HDEL', members_key, gone[i]) end
    note(row, 'unknown-worker')
  end
  local miscounted = #gone == 0 and not offer_is_exact(pool, agent)
  if miscounted then note(row, 'miscounted-agent') end
  if may_repair and (#gone > 0 or miscounted) then
    notify_of_agent(pool, agent, recount_agent(pool, agent, math.floor(now / 1000)))
  end
  if has_type(types, pool .. ':lent:' .. agent, 'hash') and recount_lent(pool, agent, workers, may_repair) then
    note(row, 'lent-slots')
  end
end

-- Takes agents that lack a skill out of `room:S`, as `dispatch` does. Without tasks of the skill, nothing else would.
local function prune_room(skill)
  local room_key, gone = pool .. ':room:' .. skill, {}
  if not has_type(types, room_key, 'zset') then return end
  local agents = redis.call('ZRANGE', room_key, 0, limit - 1)
  for i = 1, #agents do
    local agent_key = pool .. ':agent:' .. agents[i]
    local known = has_type(types, agent_key, 'hash')
    local skills = known and redis.call('HGET', agent_key, 'skills') or ''
    if known and not string.find(' ' .. skills .. ' ', ' ' .. skill .. ' ', 1, true) then gone[#gone + 1] = agents[i] end
  end
  if #gone > 0 then redis.call('ZREM', room_key, unpack(gone)) end
end

local function check_skill(row, skill)
  if may_repair then prune_room(skill) end
  local skill_key = pool .. ':skills:' .. skill
  if not has_type(types, skill_key, 'zset') then return end
  local agents = redis.call('ZRANGE', skill_key, 0, limit - 1)
  for i = 1, #agents do
    local agent_key = pool .. ':agent:' .. agents[i]
    local known = has_type(types, agent_key, 'hash')
    local skills = known and redis.call('HGET', agent_key, 'skills') or ''
    if known and not string.find(' ' .. skills .. ' ', ' ' .. skill .. ' ', 1, true) then
      if may_repair then redis.call('ZREM', skill_key, agents[i]) end
      note(row, 'skill-index')
    end
  end
end

-- Lists versions that no live worker has and that are not listed, so that they are forgotten.
local function check_versions(row, skill)
  local versions_key, left_key = pool .. ':versions:' .. skill, pool .. ':versions'
  if not has_type(types, versions_key, 'hash') or not has_type(types, left_key, 'zset') then return end
  local versions = redis.call('HKEYS', versions_key)
  for i = 1, math.min(#versions, limit) do
    local agent, digest = string.match(versions[i], '^(%S+) (%S+)$')
    local agent_key, version = pool .. ':agent:' .. (agent or ''), skill .. '=' .. (digest or '')
    if agent and has_type(types, agent_key, 'hash') and not redis.call('ZSCORE', left_key, agent .. ' ' .. version) then
      local live = types[agent_key] ~= 'none' and redis.call('HGET', agent_key, 'versions') or ''
      if not string.find(' ' .. live .. ' ', ' ' .. version .. ' ', 1, true) then
        if may_repair then
          redis.call('ZADD', left_key, integer(math.floor(now / 1000)), agent .. ' ' .. version)
          types[left_key] = 'zset'
        end
        note(row, 'skill-index')
      end
    end
  end
end

for i = 1, #rows do
  if rows[i].kind == 'skill' then check_versions(i, rows[i].name) end
  if rows[i].kind == 'agent' then check_agent(i, rows[i].name) else check_skill(i, rows[i].name) end
end
if repaired > 0 then increment_counters(pool, now, {repaired = repaired}) end
return answers
