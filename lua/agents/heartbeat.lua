#!lua flags=allow-oom
-- Records the heartbeat of a worker: for `others` only after a glance at their registrations, and for `rows` after a full
-- check, with the backlog that the worker accepts per agent.
-- status: ok seq floor | check seq floor (nothing is recorded, because one of `others` is not registered as it should be:
-- send them as `rows`) | incomplete seq floor (an agent or a limit is missing: register again) | unknown seq floor (not in
-- the registry: register again) | refused seq floor (recorded; the leader refuses the registration); each change of the desired state raises seq; floor: the lowest format that the pool
-- admits, or empty
-- repeat: records another heartbeat
local pool    = KEYS[1]                   -- key: root of the pool's slot
local worker  = ARGV[1]                   -- str: worker
local rows    = cmsgpack.unpack(ARGV[2])  -- rows: agent backlog
local others  = ARGV[3]                   -- str: agents, blank-separated
local limits  = ARGV[4]                   -- str: blank-separated names of limits of the others
local alive_s = tonumber(ARGV[5])         -- int: a worker is alive for this long after a heartbeat
local blocked = ARGV[6]                   -- str: seconds, count and place of the last block of its event loop, or empty
local now_arg = ARGV[7]                   -- time: test override, microseconds
--@include time: day_s, now_us, integer
--@include key: has_type
--@include format: read_floor
--@include limit: parse_limit
--@include registry: read_offer, update_offer, notify_of_agent

local now_ms = math.floor(now_us(now_arg) / 1000)
local worker_key = pool .. ':worker:' .. worker
-- A desired state of another type blocks every start; running tasks continue.
local seq = has_type({}, pool .. ':desired', 'hash') and (redis.call('HGET', pool .. ':desired', 'seq') or '0') or ''
local floor = read_floor(pool)
if redis.call('EXISTS', worker_key) == 0 then return {'unknown', seq, floor} end
local status, complete, types = 'ok', {}, {}

-- Returns whether a hash has all fields; `reads` tells whether it can read a value.
local function has_all(key, fields, reads)
  -- In pieces, because agents may have many limits and Lua passes some 8,000 arguments at most.
  for first = 1, #fields, 1000 do
    local last = math.min(first + 999, #fields)
    local values = redis.call('HMGET', key, unpack(fields, first, last))
    for i = 1, last - first + 1 do
      if not values[i] or (reads and not reads(values[i])) then return false end
    end
  end
  return true
end

-- Returns whether Redis lost nothing of the registrations of `others`, with one command for each kind of key. Lost keys
-- and lost last writes show; single lost fields show in a full check.
local function others_complete()
  local agent_keys, fields, names = {}, {}, {}
  for agent in string.gmatch(others, '%S+') do
    local n = #fields + 1
    local agent_key = pool .. ':agent:' .. agent
    agent_keys[2 * n - 1], agent_keys[2 * n], fields[n] = agent_key, agent_key .. ':workers', 'agent:' .. agent
  end
  for name in string.gmatch(limits, '%S+') do names[#names + 1] = name end
  return redis.call('EXISTS', unpack(agent_keys)) == #agent_keys and has_all(worker_key, fields)
    and has_all(pool .. ':limits', names, parse_limit)
end

local function is_readable(agent)
  local agent_key = pool .. ':agent:' .. agent
  return has_type(types, agent_key, 'hash') and has_type(types, agent_key .. ':workers', 'hash')
    and has_type(types, pool .. ':offers:' .. agent, 'hash') and has_type(types, pool .. ':leases:' .. agent, 'hash')
end

if others ~= '' then
  if not others_complete() then return {'check', seq, floor} end
  local listed, score = {}, integer(now_ms)
  for agent in string.gmatch(others, '%S+') do
    local n = #listed
    listed[n + 1], listed[n + 2] = score, agent
  end
  redis.call('ZADD', pool .. ':agents', unpack(listed))
end
for i = 1, #rows do
  local agent_key = pool .. ':agent:' .. rows[i].agent
  -- A registration would be refused, too: the repair names the key, and the heartbeat counts for the other agents.
  if is_readable(rows[i].agent) then
    local known = redis.call('HGET', agent_key .. ':workers', worker)
    local spec = redis.call('HMGET', agent_key, 'slots', 'limits')
    -- Only a registration restores lost fields of the agent or lost limits.
    complete[i] = string.match(known or '', '^%d+ %d') and string.match(spec.slots or '', '^%d+$') and spec.limits
    for name in string.gmatch(spec.limits or '', '%S+') do
      if not parse_limit(redis.call('HGET', pool .. ':limits', name)) then complete[i] = false end
    end
    if not complete[i] then status = 'incomplete' end
  end
end
redis.call('EXPIRE', worker_key, alive_s + 3600)
redis.call('ZADD', pool .. ':workers', integer(now_ms), worker)
if blocked ~= '' then redis.call('HSET', worker_key, 'blocked', integer(now_ms) .. ' ' .. blocked) end
for i = 1, #rows do
  if complete[i] then
    local agent, backlog = rows[i].agent, rows[i].backlog
    local agent_key = pool .. ':agent:' .. agent
    redis.call('ZADD', pool .. ':agents', integer(now_ms), agent)
    redis.call('EXPIRE', agent_key, day_s)
    redis.call('EXPIRE', agent_key .. ':workers', day_s)
    redis.call('EXPIRE', pool .. ':offers:' .. agent, day_s)
    if (redis.call('HGET', agent_key, 'limits') or '') ~= '' then backlog = '0' end
    local before = read_offer(pool, agent, worker)
    if before and before.wish ~= backlog then
      redis.call('HSET', agent_key .. ':workers', worker, before.slots .. ' ' .. backlog .. ' ' .. before.skills)
      local changed = update_offer(pool, agent, worker, before, now_ms)
      if changed then notify_of_agent(pool, agent, changed) end
    end
  end
end
if status == 'ok' and redis.call('HEXISTS', worker_key, 'refused') == 1 then status = 'refused' end
return {status, seq, floor}
