#!lua flags=allow-oom
-- Registers a worker for one agent, or updates its registration (0 slots: the worker drains).
-- status: ok | unknown_limit name
-- repeat: stores the same values again
local pool        = KEYS[1]                   -- key: root of the pool's slot
local worker      = ARGV[1]                   -- str: worker
local agent       = ARGV[2]                   -- str: agent
local slots       = tonumber(ARGV[3])         -- int: concurrent tasks of this worker
local backlog     = ARGV[4]                   -- str: 1 = entries may wait in the inbox, 0 = not
local skills      = ARGV[5]                   -- str: blank-separated
local limits      = ARGV[6]                   -- str: blank-separated names of limits
local definitions = cmsgpack.unpack(ARGV[7])  -- rows: name count window_us
local lease_ms    = ARGV[8]                   -- str: lease of this worker's entries
local about       = cmsgpack.unpack(ARGV[9])  -- rows: field value
local alive_s     = tonumber(ARGV[10])        -- int: a worker is alive for this long after a heartbeat
local terms       = ARGV[11]                  -- str: skill=max_attempts/max_deaths, blank-separated
local versions    = cmsgpack.unpack(ARGV[12]) -- rows: skill digest arguments
local redacted    = ARGV[13]                  -- str: skills whose values are hidden, blank-separated
local funds       = ARGV[14]                  -- str: per line a skill, four amounts that its starts reserve, budgets of the agent
local now_arg     = ARGV[15]                  -- time: test override, microseconds
--@include time: day_s, now_us, integer
--@include desired: is_active
--@include notify: notify_supervisor
--@include registry: read_offer, update_offer, notify_of_agent

local now_ms = math.floor(now_us(now_arg) / 1000)
local defined = {}
for i = 1, #definitions do defined[definitions[i].name] = true end
for name in string.gmatch(limits, '%S+') do
  if not defined[name] and redis.call('HEXISTS', pool .. ':limits', name) == 0 then return {'unknown_limit', name} end
end

-- The leader refuses the worker: it may run on, and gets no task by its offer.
if redis.call('HEXISTS', pool .. ':worker:' .. worker, 'refused') == 1 then slots = 0 end
local before = read_offer(pool, agent, worker)
local inbox_key, agent_key, worker_key = pool .. ':inbox:' .. agent, pool .. ':agent:' .. agent, pool .. ':worker:' .. worker
local has_group = redis.call('EXISTS', inbox_key) == 1 and #redis.call('XINFO', 'GROUPS', inbox_key) > 0
if not has_group then redis.call('XGROUP', 'CREATE', inbox_key, 'workers', '0', 'MKSTREAM') end
local shared_changed = false
for i = 1, #definitions do
  local name, definition = definitions[i].name, integer(definitions[i].count) .. ' ' .. integer(definitions[i].window_us)
  -- An operator's rate overrides this one until it is reset.
  if is_active(pool, 'limit:' .. name) then name = '=' .. name end
  if name ~= '@' .. agent and redis.call('HGET', pool .. ':limits', name) ~= definition then shared_changed = true end
  redis.call('HSET', pool .. ':limits', name, definition)
end
-- Before a task of the worker has values that a view could show; `describe` repeats it each day.
for skill in string.gmatch(redacted, '%S+') do redis.call('SADD', pool .. ':redacted', skill) end
redis.call('HSETNX', worker_key, 'started_ms', integer(now_ms))
for i = 1, #about do redis.call('HSET', worker_key, about[i].field, about[i].value) end
redis.call('HSET', worker_key, 'agent:' .. agent, slots, 'alive_s', alive_s)
redis.call('EXPIRE', worker_key, alive_s + 3600)
redis.call('ZADD', pool .. ':workers', integer(now_ms), worker)
redis.call('ZADD', pool .. ':agents', integer(now_ms), agent)
if limits ~= '' then backlog = '0' end
redis.call('HSET', agent_key, 'limits', limits, 'terms', terms)
local funds_changed
if funds ~= '' then
  funds_changed = redis.call('HGET', agent_key, 'funds') ~= funds
  redis.call('HSET', agent_key, 'funds', funds)
else
  funds_changed = redis.call('HDEL', agent_key, 'funds') == 1
end
redis.call('HSET', pool .. ':leases:' .. agent, worker, lease_ms)
redis.call('HSET', agent_key .. ':workers', worker, slots .. ' ' .. backlog .. ' ' .. skills)
redis.call('EXPIRE', agent_key, day_s)
redis.call('EXPIRE', agent_key .. ':workers', day_s)
local offered = {}
for i = 1, #versions do
  local skill, digest = versions[i].skill, versions[i].digest
  offered[i] = skill .. '=' .. digest
  -- The first registration counts, so that a version that returns after a rollback stays the older one.
  if slots > 0 then
    redis.call('HSETNX', pool .. ':versions:' .. skill, agent .. ' ' .. digest, integer(now_ms) .. ' ' .. versions[i].arguments)
  end
end
redis.call('HSET', worker_key, 'versions:' .. agent, table.concat(offered, ' '))
notify_of_agent(pool, agent, update_offer(pool, agent, worker, before, now_ms))
-- Other agents may have the limit.
if shared_changed then notify_supervisor(pool, 'agents') end
-- Tasks that wait for a budget may need less now.
if funds_changed then notify_supervisor(pool, 'budgets') end
return {'ok', ''}
