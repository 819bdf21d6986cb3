#!lua flags=no-writes
-- Reads the counters and sizes of a pool, and the names of its agents.
-- returns: now_us, leader (or nothing),
--   counters: name, number, ...
--   agents, longest silent first,
--   sizes: scheduled asking joining awaiting_tasks dead workers supervisors schedules sessions, commands, refusals,
--     due ms of the next schedule (left out without any)
--   slots of active stops and pauses, those of sessions left out; number of stopped sessions
-- repeat: reads again
local pool    = KEYS[1]            -- key: root of the pool's slot
local now_arg = ARGV[1]            -- time: test override, microseconds
--@include time: now_us, integer
--@include key: has_type
--@include desired: is_active, held_until, desired_number

local now = now_us(now_arg)

-- Returns how many entries a stream has ever had.
local function added_to(stream_key)
  if redis.call('EXISTS', stream_key) == 0 then return 0 end
  local facts = redis.call('XINFO', 'STREAM', stream_key)
  for i = 1, #facts, 2 do
    if facts[i] == 'entries-added' then return facts[i + 1] end
  end
  return 0
end

local counters, totals_key = {}, pool .. ':stats:TOTAL'
local names, counts = redis.call('HKEYS', totals_key), redis.call('HVALS', totals_key)
for i = 1, #names do counters[2 * i - 1], counters[2 * i] = names[i], counts[i] end
-- Counters of durable submits and of losses; their names have a colon, `lease_requests` excepted.
names, counts = redis.call('HKEYS', pool .. ':durability'), redis.call('HVALS', pool .. ':durability')
for i = 1, #names do counters[#counters + 1], counters[#counters + 2] = names[i], counts[i] end
local schedules_key = pool .. ':schedules'
local sizes = {
  redis.call('ZCARD', pool .. ':scheduled'), redis.call('ZCARD', pool .. ':asking'), redis.call('ZCARD', pool .. ':joining'),
  redis.call('ZCARD', pool .. ':after'),
  redis.call('ZCARD', pool .. ':dead'), redis.call('ZCARD', pool .. ':workers'), redis.call('ZCOUNT', pool .. ':supervisors', integer(now / 1000), '+inf'),
  redis.call('ZCARD', schedules_key), redis.call('ZCARD', pool .. ':sessions'),
  added_to(pool .. ':control'), added_to(pool .. ':control:refused'),
  redis.call('ZRANGE', schedules_key, 0, 0, 'WITHSCORES')[2],
}

local desired_key = pool .. ':desired'
local stops, slots = {}, has_type({}, desired_key, 'hash') and redis.call('HKEYS', desired_key) or {}
for i = 1, #slots do
  local verb, kind = string.match(slots[i], '^(%l+):(%l+)')
  if (verb == 'pause' or (verb == 'stop' and kind ~= 'session' and kind ~= 'family')) and is_active(pool, slots[i]) then
    stops[#stops + 1] = slots[i]
  elseif verb == 'hold' and kind == 'agent' and held_until(pool, slots[i], math.floor(now / 1000)) > 0 then
    stops[#stops + 1] = slots[i]
  end
end
local sessions = #slots > 0 and desired_number(desired_key, 'sessions') or 0
return {
  integer(now), redis.call('GET', pool .. ':leader') or '', counters, redis.call('ZRANGE', pool .. ':agents', 0, -1), sizes,
  stops, sessions,
}
