#!lua flags=allow-oom
-- Claims entries of one inbox for a worker: entries whose worker was silent for its own lease and, on demand, its own entries that a broken
-- connection lost. Each claimed entry gets a new generation, so that its former holder can change nothing. Renews the
-- entries that the caller holds. Returns at most 1 MiB of envelopes.
-- returns: looked (1: the inbox was searched, 0: searched a moment ago, or a grace period runs),
--          suspects (1: tasks of the pool wait for room beside few suspects: see `take_suspects`),
--          filled (1: the inbox holds entries),
--          dead (a list: id skill attempt deaths of each task that is a dead letter now),
--          then per delivery: entry id generation attempt deaths `forgiven` group (-1: none) depth envelope
-- repeat: returns the claimed entries as lost ones, because the caller does not list them as held
local pool       = KEYS[1]                   -- key: root of the pool's slot
local worker     = ARGV[1]                   -- str: consumer that adopts
local agent      = ARGV[2]                   -- str: agent
local lease_ms   = tonumber(ARGV[3])         -- int: lease of the caller
local held       = cmsgpack.unpack(ARGV[4])  -- rows: entry
local limit      = tonumber(ARGV[5])         -- int: at most this many (free slots of the caller)
local own        = ARGV[6]                   -- str: 1 = also the caller's own lost entries
local max_deaths = cmsgpack.unpack(ARGV[7])  -- rows: skill deaths
local dead_ttl_s = tonumber(ARGV[8])         -- int: minimum lifetime of dead letters
local now_arg    = ARGV[9]                   -- time: test override, microseconds
--@include time: day_s, now_us, integer
--@include record: next_generation
--@include output: append_event
--@include desired: agent_blocked, held_until, any_session_stopped, stopped_scope
--@include queue: start_waiting, flush_waiting
--@include limit: limit_room, take_slots, return_slots
--@include lease: stored_ms, read_leases, is_after_gap, expired_entries
--@include inbox: task_of_entry, remove_entries
--@include ending: start_endings, flush_endings
--@include envelope: depth_of
--@include reclaim: co_running, count_crew, reclaim_task, requeue_task
--@include share: take_place
--@include budget: names_budgets
--@rare: stored_size, collect_bytes, add_bytes
--@rare: consider, take_place, join_flow, wake_flows, remove_entries, put_ready, put_due, flush_turns, note_activity, end_spending, flush_budgets, tell_followers

local inline_bytes, call_bytes = 16384, 1048576
local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local agent_key, inbox_key = pool .. ':agent:' .. agent, pool .. ':inbox:' .. agent
local entries = redis.call('XLEN', inbox_key)
if entries == 0 and redis.call('EXISTS', inbox_key) == 0 then return {0, 0, 0, {}} end
local ending, waiting = start_endings(now), start_waiting()
local deaths_allowed = {}
for i = 1, #max_deaths do deaths_allowed[max_deaths[i].skill] = max_deaths[i].deaths end

local seen = redis.call('HMGET', agent_key, 'looked', 'grace', 'limits', 'rest', 'shortest_lease_ms', 'funds')
local looked, limits, rest = stored_ms(seen.looked, 0), seen.limits or '', seen.rest == '1'
local stepped_back = now_ms < looked
-- One search serves all workers for a tenth of a lease, unless it left entries behind. Each worker asks every fifth of
-- a lease, so searches are at most three tenths apart: less than the third that counts as an outage.
local search = rest or stepped_back or now_ms - looked >= lease_ms / 10
local leases, shortest, longest = read_leases(pool, agent, lease_ms)
-- A damaged time of grace begins again.
local grace = stored_ms(seen.grace, seen.grace and now_ms + longest or 0)
-- While no search was possible, no renewal was: every holder gets one lease as grace (protocol rule 10).
local gap_ms = math.min(lease_ms, stored_ms(seen.shortest_lease_ms, lease_ms)) / 3
if search and (stepped_back or is_after_gap(inbox_key, now_ms, looked, gap_ms)) then grace = now_ms + longest end
-- A registration always writes `limits`. A record that Redis lost stays missing, so that a heartbeat finds that and the
-- worker registers again. Until then no look can be stored, and no expired entry is taken.
local may_store = search and (seen.limits or seen.grace)
local may_take = may_store and now_ms >= grace

local any_active = redis.call('EXISTS', pool .. ':desired') == 1
local blocked = any_active and (agent_blocked(pool, agent) or held_until(pool, 'hold:agent:' .. agent, now_ms) > 0)
local sessions = any_active and any_session_stopped(pool)

-- Returns whether an active command keeps a task from starting.
local function stopped(id, task)
  if blocked then return true end
  local skill = task.skill or string.match(task.queue, '^skill:(.*)$')
  return any_active and stopped_scope(pool, sessions, skill, id, task.env) ~= nil
end

--@rows candidates: entry died worker
local holds, claim, candidates = {}, {}, {}
for i = 1, #held do holds[held[i].entry] = true end
--@rows mine: entry
local mine = redis.call('XPENDING', inbox_key, 'workers', '-', '+', 1000 + #held, worker)
for i = 1, #mine do
  local entry = mine[i].entry
  if holds[entry] then
    claim[#claim + 1] = entry
  elseif own == '1' and #candidates < limit then
    candidates[#candidates + 1] = {entry, false}
  end
end
local renewed = #claim
if may_take then
  rest = false
  -- One more than fits, to learn whether entries are left for the next caller.
  local wanted = limit - #candidates + #mine + 1
  --@rows idle: entry worker
  local idle = expired_entries(inbox_key, leases, shortest, longest, function() return 0 end, wanted)
  for i = 1, #idle do
    if idle[i].worker ~= worker then
      if #candidates < limit then
        candidates[#candidates + 1] = {idle[i].entry, true, idle[i].worker}
      else
        rest = true
      end
    elseif own ~= '1' and not holds[idle[i].entry] then
      rest = true
    end
  end
end

local answers, bytes, leave = {may_take and 1 or 0, redis.call('EXISTS', pool .. ':suspects'), 0, {}}, 0, {}
local crews = {}

local ids, from = {}, {}
for i = 1, #candidates do
  ids[i] = task_of_entry(inbox_key, candidates[i].entry)
  from[i] = candidates[i].worker or ''
end

local function consider(i)
  local entry, died, id = candidates[i].entry, candidates[i].died, ids[i]
  local evidence = integer(now_ms) .. ' ' .. from[i] .. ' lease ran out' .. (died and co_running(ids, from, i) or '')
  if died and not crews[from[i]] then crews[from[i]] = count_crew(pool, agent, from[i], now_ms) end
  local crew = died and crews[from[i]] or nil
  local task = id ~= '' and reclaim_task(pool, ending, agent, entry, id, crew, false, deaths_allowed, dead_ttl_s, evidence)
  if not task then
    leave[#leave + 1] = entry
    return
  end
  died = task.died
  local generation = integer(next_generation(task.gen, now_ms))
  if not died then return_slots(pool, agent, id, task.gen) end
  if stopped(id, task) then
    requeue_task(pool, waiting, id, task, generation, now, 'is stopped')
    leave[#leave + 1] = entry
    return
  end
  if task.spends or (seen.funds and names_budgets(seen.funds)) then
    -- Only `assign` starts it, if its budgets have room.
    requeue_task(pool, waiting, id, task, generation, now, 'waits for its budget')
    leave[#leave + 1] = entry
    return
  end
  local room, _, trials = 1, 0, nil
  if limits ~= '' and not (died and task.group) then room, _, trials = limit_room(pool, limits, now, 1) end
  if (died and task.group) or room < 1 then
    requeue_task(pool, waiting, id, task, generation, now, task.group and 'waits for room' or 'waits for a rate limit')
    leave[#leave + 1] = entry
    return
  end
  redis.call('HSET', pool .. ':task:' .. id, 'gen', generation)
  -- An attempt that waited for its children had lent its place.
  if task.fair then take_place(pool, task.fair, id) end
  if limits ~= '' then take_slots(pool, limits, now, {id .. ':' .. generation}, trials) end
  if task.out and died then append_event(pool, id, generation, task.fails + task.deaths + 1, 'assigned', agent) end
  claim[#claim + 1] = entry
  local envelope = task.env
  if #envelope > inline_bytes then envelope = '' end
  bytes = bytes + #envelope
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = entry, id, generation
  answers[n + 4], answers[n + 5] = task.fails + task.deaths + 1, task.deaths
  answers[n + 6], answers[n + 7], answers[n + 8] = task.forgiven, task.group or -1, depth_of(task.env)
  answers[n + 9] = envelope
end

for i = 1, #candidates do
  if bytes >= call_bytes then
    rest = rest or candidates[i].died
  else
    consider(i)
  end
end
if may_store then
  redis.call('HSET', agent_key, 'looked', integer(now_ms), 'grace', integer(grace), 'rest', rest and '1' or '0')
  redis.call('EXPIRE', agent_key, day_s, 'NX')
end
if #claim > renewed then ending.counts.adopted = #claim - renewed end
if #claim > 0 then
  claim[#claim + 1] = 'JUSTID'
  redis.call('XCLAIM', inbox_key, 'workers', worker, 0, unpack(claim))
end
flush_waiting(pool, waiting)
if #leave > 0 then remove_entries(pool, agent, leave) end
flush_endings(pool, ending)
answers[3] = entries > #leave and 1 or 0
if ending.dead then answers[4] = ending.dead end
return answers
