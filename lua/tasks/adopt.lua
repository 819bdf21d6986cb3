#!lua flags=allow-oom
-- Hand a worker entries of one inbox: those whose lease ran out, and on demand its own that it never saw (a broken
-- connection swallowed them). Each handed entry gets a new generation, so whoever held it before can change nothing.
-- answers: looked (1: the inbox was searched, 0: somebody looked just now, or a grace after an outage runs),
--          then per delivery: entry id generation attempt deaths envelope
-- repeat: what the first call handed over is in the list of own lost entries, because the caller does not hold it
local pool       = KEYS[1]                   -- key: root of the pool's slot
local worker     = ARGV[1]                   -- str: consumer that takes
local agent      = ARGV[2]                   -- str: agent
local lease_ms   = tonumber(ARGV[3])         -- int: lease of the agent
local held       = cmsgpack.unpack(ARGV[4])  -- rows: entry
local limit      = tonumber(ARGV[5])         -- int: at most so many (free slots of the caller)
local own        = ARGV[6]                   -- str: 1 = also the caller's own lost entries
local max_deaths = cmsgpack.unpack(ARGV[7])  -- rows: skill deaths
local dead_ttl_s = tonumber(ARGV[8])         -- int: dead letters are kept at least so long
local now_arg    = ARGV[9]                   -- time: test override, microseconds
--@include now_us
--@include whole
--@include raise
--@include put_ready
--@include put_due
--@include take_out
--@include take_back
--@include return_slots
--@include limit_room
--@include take_slots
--@include start_endings
--@include flush_endings

local inline_bytes = 16384
local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local agent_key, inbox_key = pool .. ':agent:' .. agent, pool .. ':inbox:' .. agent
if redis.call('EXISTS', inbox_key) == 0 then return {0} end
local ending = start_endings(now)
local deaths_allowed = {}
for i = 1, #max_deaths do deaths_allowed[max_deaths[i][1]] = max_deaths[i][2] end

local seen = redis.call('HMGET', agent_key, 'looked', 'grace', 'limits')
local looked, grace, limits = tonumber(seen[1] or 0), tonumber(seen[2] or 0), seen[3] or ''
local search = now_ms - looked >= lease_ms / 5 or now_ms < looked
if search then
  redis.call('HSET', agent_key, 'looked', whole(now_ms))
  -- Nobody could renew while nobody could look: give every holder one lease to come back (protocol rule 10).
  if now_ms - looked > lease_ms / 3 or now_ms < looked then
    grace = now_ms + lease_ms
    redis.call('HSET', agent_key, 'grace', whole(grace))
  end
end
local may_take = search and now_ms >= grace

local candidates, holds = {}, {}
for i = 1, #held do holds[held[i][1]] = true end
if own == '1' then
  local pending = redis.call('XPENDING', inbox_key, 'workers', '-', '+', 1000, worker)
  for i = 1, #pending do
    if not holds[pending[i][1]] and #candidates < limit then candidates[#candidates + 1] = {pending[i][1], false} end
  end
end
if may_take and #candidates < limit then
  local pending = redis.call('XPENDING', inbox_key, 'workers', 'IDLE', lease_ms, '-', '+', limit)
  for i = 1, #pending do
    if pending[i][2] ~= worker and #candidates < limit then
      candidates[#candidates + 1] = {pending[i][1], true, pending[i][2]}
    end
  end
end

local answers = {may_take and 1 or 0}
local leave, claim, ready, scheduled = {}, {}, {}, {}

local function consider(entry, died, from)
  local read = redis.call('XRANGE', inbox_key, entry, entry)
  if not read[1] then
    leave[#leave + 1] = entry
    return
  end
  local id = read[1][2][2]
  local evidence = whole(now_ms) .. ' ' .. (from or '') .. ' lease ran out'
  local task = take_back(pool, ending, entry, id, died, deaths_allowed, dead_ttl_s, evidence)
  if not task then
    leave[#leave + 1] = entry
    return
  end
  local task_key = pool .. ':task:' .. id
  local generation = whole(raise(task.gen, now_ms))
  if not died then return_slots(pool, agent, id, task.gen) end
  if died and task.deaths >= 2 then
    -- Full jitter from the clock's microseconds: 1 s, 2 s, 4 s ... at most 5 min.
    local delay = math.min(300000, 1000 * 2 ^ (task.deaths - 2)) * (now % 1000) / 1000
    redis.call('HSET', task_key, 'state', 'scheduled', 'gen', generation)
    scheduled[#scheduled + 1] = whole(now_ms + math.floor(delay))
    scheduled[#scheduled + 1] = id
    leave[#leave + 1] = entry
  elseif limits ~= '' and limit_room(pool, limits, now, 1) < 1 then
    redis.call('HSET', task_key, 'state', 'ready', 'gen', generation)
    local queued = ready[task.queue]
    if not queued then
      queued = {}
      ready[task.queue] = queued
    end
    queued[#queued + 1] = task.score
    queued[#queued + 1] = id
    leave[#leave + 1] = entry
  else
    redis.call('HSET', task_key, 'gen', generation)
    if limits ~= '' then take_slots(pool, limits, now, {id .. ':' .. generation}) end
    claim[#claim + 1] = entry
    local envelope = task.env
    if #envelope > inline_bytes then envelope = '' end
    local n = #answers
    answers[n + 1], answers[n + 2], answers[n + 3] = entry, id, generation
    answers[n + 4], answers[n + 5], answers[n + 6] = task.fails + task.deaths + 1, task.deaths, envelope
  end
end

for i = 1, #candidates do consider(candidates[i][1], candidates[i][2], candidates[i][3]) end
if #claim > 0 then
  ending.counts.adopted = #claim
  claim[#claim + 1] = 'JUSTID'
  redis.call('XCLAIM', inbox_key, 'workers', worker, 0, unpack(claim))
end
for queue, scored in pairs(ready) do put_ready(pool, queue, scored) end
if #scheduled > 0 then put_due(pool, 'scheduled', scheduled) end
if #leave > 0 then take_out(pool, agent, leave) end
flush_endings(pool, ending)
return answers
