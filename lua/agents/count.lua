#!lua
-- Adds the attempts that a worker has ended to the counters of their agents and skills.
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
local known = redis.call('HMGET', worker_key, 'alive_s', 'counted')
if not known.alive_s then return {'unknown', now_ms} end
if #rows == 0 or known.counted == batch then return {'ok', now_ms} end
local named = redis.call('ZCARD', names_key)
local minutes = redis.call('HLEN', minute_key)

for i = 1, #rows do
  local name = rows[i].agent .. ' ' .. rows[i].skill
  if named >= most and not redis.call('ZSCORE', names_key, name) then
    -- A name is free again when no minute still has it.
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
  -- A flat list cell, count, cell, count ...; see `orchestrator/agents/timings.py`.
  local sums, counts = {}, rows[i].counts
  for j = 1, #counts, 2 do sums[counts[j]] = counts[j + 1] end
  local stored = minutes > 0 and redis.call('HGET', minute_key, name)
  if stored then
    local earlier = cmsgpack.unpack(stored)
    for j = 1, #earlier, 2 do sums[earlier[j]] = (sums[earlier[j]] or 0) + earlier[j + 1] end
  end
  local merged = {}
  for cell, count in pairs(sums) do
    merged[#merged + 1] = cell
    merged[#merged + 1] = count
  end
  redis.call('HSET', minute_key, name, cmsgpack.pack(merged))
  minutes = 1
end
redis.call('EXPIRE', minute_key, day_s + 120)
redis.call('EXPIRE', names_key, day_s + 120)
redis.call('HSET', worker_key, 'counted', batch)
return {'ok', now_ms}
