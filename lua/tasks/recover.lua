#!lua flags=allow-oom
-- Requeues entries of one inbox that no worker will finish: entries whose lease ran out long ago, because every live
-- worker must be full; unread entries of an agent without workers, or without a free slot while another agent has the
-- skill. Ends unread tasks that did not start in time.
-- returns: requeued, left (1: call again), filled (1: the inbox holds entries),
--          dead (a list: id skill attempt deaths of each task that is a dead letter now)
-- repeat: finds only entries that ran out since
local pool       = KEYS[1]             -- key: root of the pool's slot
local agent      = ARGV[1]             -- str: agent
local limit      = tonumber(ARGV[2])   -- int: at most this many entries of each kind (500)
local every_ms   = tonumber(ARGV[3])   -- int: interval of the caller's searches
local heartbeat_ms = tonumber(ARGV[4])   -- int: interval of renewals, at most a third of a lease
local dead_ttl_s = tonumber(ARGV[5])   -- int: minimum lifetime of dead letters
local clean      = ARGV[6]             -- str: 1 = also remove consumers that are not registered and hold nothing
local now_arg    = ARGV[7]             -- time: test override, microseconds
--@include time: day_s, now_us, integer
--@include envelope: skill_queue
--@include record: read_task, next_generation
--@include queue: start_waiting, flush_waiting
--@include limit: return_slots
--@include lease: stored_ms, read_leases, is_after_gap, expired_entries
--@include inbox: task_of_entry, remove_entries
--@include ending: start_endings, flush_endings
--@include reclaim: co_running, count_crew, reclaim_task, requeue_task

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local agent_key, inbox_key = pool .. ':agent:' .. agent, pool .. ':inbox:' .. agent
if redis.call('EXISTS', inbox_key) == 0 then return {0, 0, 0, {}} end
local group = redis.call('XINFO', 'GROUPS', inbox_key)[1]
-- A stream that was restored without its group gets a group that reads from the beginning (protocol rule 27).
if not group then redis.call('XGROUP', 'CREATE', inbox_key, 'workers', '0') end
local read_up_to = '0-0'
for i = 1, group and #group or 0, 2 do
  if group[i] == 'last-delivered-id' then read_up_to = group[i + 1] end
end

local spec = redis.call('HMGET', agent_key, 'slots', 'lease_ms', 'swept', 'grace', 'terms', 'looked', 'shortest_lease_ms',
  'limits')
local slots, lease_ms = tonumber(spec.slots or 0), stored_ms(spec.lease_ms, 15000)
local leases, shortest, longest = read_leases(pool, agent, lease_ms)
-- A damaged time of grace begins again.
local swept, grace = stored_ms(spec.swept, 0), stored_ms(spec.grace, spec.grace and now_ms + longest or 0)
local deaths_allowed = {}
for skill, deaths in string.gmatch(spec.terms or '', '(%S+)=%d+/(%d+)') do deaths_allowed[skill] = tonumber(deaths) end
-- While no supervisor or worker searched, renewals may have failed too: every holder gets one lease as grace (protocol
-- rule 10).
local seen = math.max(swept, stored_ms(spec.looked, 0))
local gap_ms = every_ms + stored_ms(spec.shortest_lease_ms, lease_ms) / 3
if now_ms < swept or is_after_gap(inbox_key, now_ms, seen, gap_ms) then grace = math.max(grace, now_ms + longest) end
-- A registration always writes `limits`. A record that Redis lost stays missing while the agent has workers, so that a
-- heartbeat finds that and the worker registers again. Until then no look can be stored, and no expired entry is taken.
local may_store = spec.limits or spec.grace or redis.call('EXISTS', agent_key .. ':workers') == 0
if may_store then
  redis.call('HSET', agent_key, 'swept', integer(now_ms), 'grace', integer(grace))
  redis.call('EXPIRE', agent_key, day_s, 'NX')
end

local ending, waiting = start_endings(now), start_waiting()
local leave, given_back, left = {}, 0, 0

local function give_back(entry, id, crew, evidence)
  local task = reclaim_task(pool, ending, agent, entry, id, crew, false, deaths_allowed, dead_ttl_s, evidence)
  leave[#leave + 1] = entry
  if not task then return end
  if not task.died then return_slots(pool, agent, id, task.gen) end
  requeue_task(pool, waiting, id, task, integer(next_generation(task.gen, now_ms)), now, 'no worker had read it')
  given_back = given_back + 1
end

if may_store and now_ms >= grace then
  local function slack(lease) return 2 * math.min(heartbeat_ms, math.floor(lease / 3)) end
  --@rows overdue: entry worker
  local overdue = expired_entries(inbox_key, leases, shortest, longest, slack, limit)
  if #overdue == limit then left = 1 end
  local ids, from, crews = {}, {}, {}
  for i = 1, #overdue do
    ids[i] = task_of_entry(inbox_key, overdue[i].entry)
    from[i] = overdue[i].worker
  end
  for i = 1, #overdue do
    local evidence = integer(now_ms) .. ' ' .. from[i] .. ' lease ran out' .. co_running(ids, from, i)
    crews[from[i]] = crews[from[i]] or count_crew(pool, agent, from[i], now_ms)
    give_back(overdue[i].entry, ids[i], crews[from[i]], evidence)
  end
end

local full = slots > 0 and redis.call('XPENDING', inbox_key, 'workers')[1] >= slots
if slots == 0 or full then
  --@rows unread: entry fields
  local unread = redis.call('XRANGE', inbox_key, '(' .. read_up_to, '+', 'COUNT', limit)
  if #unread == limit then left = 1 end
  for i = 1, #unread do
    local entry, id = unread[i].entry, unread[i].fields[2]
    local known = read_task(pool .. ':task:' .. id, 'by', 'queue', 'env')
    local waited_ms = now_ms - tonumber(string.match(entry, '^%d+'))
    local late = known.by and tonumber(known.by) <= now_ms
    local queue = known.queue or (known.env and skill_queue(known.env)) or ''
    local skill = string.match(queue, '^skill:(.*)$')
    local elsewhere = skill and redis.call('ZCARD', pool .. ':skills:' .. skill) > 1
    if slots == 0 or late or (waited_ms > 1000 and elsewhere) then give_back(entry, id, nil, '') end
  end
end

flush_waiting(pool, waiting)
if #leave > 0 then remove_entries(pool, agent, leave) end
if given_back > 0 then ending.counts.recovered = given_back end
flush_endings(pool, ending)

-- Workers that lost entries hold nothing now, and their leases would lengthen each grace until the turn of this agent.
if clean == '1' or #leave > 0 then
  local consumers = redis.call('XINFO', 'CONSUMERS', inbox_key, 'workers')
  local readers = {}
  for i = 1, math.min(#consumers, limit) do
    local facts = {}
    for j = 1, #consumers[i], 2 do facts[consumers[i][j]] = consumers[i][j + 1] end
    readers[facts.name] = true
    local known = redis.call('HEXISTS', agent_key .. ':workers', facts.name) == 1
    if not known and facts.pending == 0 and facts.idle > (leases[facts.name] or longest) then
      redis.call('XGROUP', 'DELCONSUMER', inbox_key, 'workers', facts.name)
      redis.call('HDEL', pool .. ':leases:' .. agent, facts.name)
    end
  end
  for name in pairs(leases) do
    if #consumers <= limit and not readers[name] and redis.call('HEXISTS', agent_key .. ':workers', name) == 0 then
      redis.call('HDEL', pool .. ':leases:' .. agent, name)
    end
  end
end
return {given_back, left, redis.call('XLEN', inbox_key) > 0 and 1 or 0, ending.dead or {}}
