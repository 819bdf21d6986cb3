#!lua
-- Adds the attempts that a worker has ended to the counters of their agents and skills: those of the minute, and the
-- totals.
-- status: ok now_ms | unknown now_ms (not registered, nothing is added)
-- repeat: adds nothing; a worker numbers its batches
local pool    = KEYS[1]                   -- key: root of the pool's slot
local worker  = ARGV[1]                   -- str: worker
local batch   = ARGV[2]                   -- str: number of the batch
local rows    = cmsgpack.unpack(ARGV[3])  -- rows: agent skill counts
local most    = tonumber(ARGV[4])         -- int: pairs of agent and skill that are counted by name
local now_arg = ARGV[5]                   -- time: test override, microseconds
--@include time: day_s, now_us, integer

local now_ms = math.floor(now_us(now_arg) / 1000)
local minute = math.floor(now_ms / 60000)
local worker_key, names_key = pool .. ':worker:' .. worker, pool .. ':timings'
local minute_key = pool .. ':timings:' .. integer(minute)
local totals_key = pool .. ':timings:TOTAL'
local known = redis.call('HMGET', worker_key, 'alive_s', 'counted')
if not known.alive_s then return {'unknown', now_ms} end
if #rows == 0 or known.counted == batch then return {'ok', now_ms} end
local named = redis.call('ZCARD', names_key)
local minutes = redis.call('HLEN', minute_key)

-- Adds a flat list cell, count, cell, count ... (`orchestrator/agents/timings.py`) to one of the same form. Returns a map.
local function add_up(stored, counts)
  local sums = {}
  for i = 1, #counts, 2 do sums[counts[i]] = counts[i + 1] end
  if stored then
    local earlier = cmsgpack.unpack(stored)
    for i = 1, #earlier, 2 do sums[earlier[i]] = (sums[earlier[i]] or 0) + earlier[i + 1] end
  end
  return sums
end

local function store_sums(key, name, sums)
  local flat = {}
  for cell, count in pairs(sums) do
    flat[#flat + 1] = cell
    flat[#flat + 1] = count
  end
  redis.call('HSET', key, name, cmsgpack.pack(flat))
end

-- Weighs the running times of a batch against the earlier ones, which count half after `half_life_ms`: thousandths of
-- attempts, their microseconds, and the ms of this call.
local cell_ran_ms, first_run, last_run, recent_runs, recent_us, recent_at, half_life_ms = 17, 64, 95, 18, 19, 20, 600000
local function weigh_recent(sums, counts, before)
  local runs, us = 0, 0
  for i = 1, #counts, 2 do
    if counts[i] == cell_ran_ms then us = us + 1000 * counts[i + 1] end
    if counts[i] >= first_run and counts[i] <= last_run then runs = runs + 1000 * counts[i + 1] end
  end
  local share = 0.5 ^ (math.max(0, now_ms - before.at) / half_life_ms)
  sums[recent_runs] = math.floor(before.runs * share + runs)
  sums[recent_us] = math.floor(before.us * share + us)
  sums[recent_at] = now_ms
end

-- Forgets totals whose name was given away, here or by a program that knows of no totals.
local function make_room()
  local names = redis.call('HKEYS', totals_key)
  for i = 1, #names do
    if names[i] ~= '* *' and not redis.call('ZSCORE', names_key, names[i]) then redis.call('HDEL', totals_key, names[i]) end
  end
end

for i = 1, #rows do
  local name, counts = rows[i].agent .. ' ' .. rows[i].skill, rows[i].counts
  if named >= most and not redis.call('ZSCORE', names_key, name) then
    -- A name is free again when no minute has it any longer.
    local oldest = redis.call('ZRANGE', names_key, 0, 0, 'WITHSCORES')
    if minute - tonumber(oldest[2]) > 1440 then
      redis.call('ZREM', names_key, oldest[1])
    else
      name = '* *'
    end
  end
  if name ~= '* *' then
    redis.call('ZADD', names_key, minute, name)
    named = redis.call('ZCARD', names_key)
  end
  store_sums(minute_key, name, add_up(minutes > 0 and redis.call('HGET', minute_key, name), counts))
  minutes = 1
  local total = redis.call('HGET', totals_key, name)
  if not total and redis.call('HLEN', totals_key) >= most then make_room() end
  local before = {runs = 0, us = 0, at = now_ms}
  local sums = add_up(total, counts)
  if total then before = {runs = sums[recent_runs], us = sums[recent_us], at = sums[recent_at]} end
  weigh_recent(sums, counts, before)
  store_sums(totals_key, name, sums)
end
redis.call('EXPIRE', minute_key, day_s + 120)
redis.call('EXPIRE', names_key, day_s + 120)
redis.call('EXPIRE', totals_key, 30 * day_s)
redis.call('HSET', worker_key, 'counted', batch)
return {'ok', now_ms}
