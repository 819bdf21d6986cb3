#!lua flags=allow-oom
-- Marks slots of the desired state as verified, and restores slots whose signature is false. Removes ended commands and
-- corrects the number of stopped sessions. Skips slots that changed after the caller read them.
-- rows: slot, the value that was read ('': none), verdict true | false | over; for a false slot the rate of the
--       restored limit, and the value to restore (without one: the last verified value)
-- returns: number of changed slots
-- repeat: changes nothing
local pool     = KEYS[1]                   -- key: root of the pool's slot
local rows     = cmsgpack.unpack(ARGV[1])  -- rows: slot value verdict starts window_us again
local seq      = ARGV[2]                   -- str: seq of the state that was read
local sessions = ARGV[3]                   -- str: correct number of stopped sessions; empty: the stored one is correct
--@include notify: notify_supervisor
--@include desired: is_active, is_of_envelope, count_desired, raise_seq
--@include limit: set_limit
--@include share: wake_share

local desired_key = pool .. ':desired'
local undone = 0

local function put_back(slot, true_value, starts, window_us, restored)
  local was = is_active(pool, slot)
  if true_value then
    redis.call('HSET', desired_key, slot, true_value)
    -- The control stream may not have the command, which would contradict the slot at the next look.
    if restored then redis.call('HSET', desired_key, 'verified:' .. slot, true_value) end
  else
    redis.call('HDEL', desired_key, slot, 'verified:' .. slot)
  end
  local is = is_active(pool, slot)
  if is_of_envelope(slot) and was ~= is then count_desired(pool, 'sessions', is and 1 or -1) end
  local limit = string.match(slot, '^limit:(.*)$')
  if limit then set_limit(pool, limit, starts, window_us) end
  wake_share(pool, slot)
  undone = undone + 1
end

local function verify(row)
  local slot, value, verdict = row.slot, row.value, row.verdict
  local verified_slot = 'verified:' .. slot
  if (redis.call('HGET', desired_key, slot) or '') ~= value then return end
  if verdict == 'false' then
    local copy = redis.call('HGET', desired_key, verified_slot)
    put_back(slot, row.again or copy, row.starts, row.window_us, row.again and (value == '' or copy == value))
  elseif verdict == 'over' then
    put_back(slot)
  elseif string.byte(value) == 49 then
    redis.call('HSET', desired_key, verified_slot, value)
  else
    redis.call('HDEL', desired_key, slot, verified_slot)
  end
end

if sessions ~= '' and (redis.call('HGET', desired_key, 'seq') or '') == seq then
  redis.call('HSET', desired_key, 'sessions', sessions)
end
for i = 1, #rows do verify(rows[i]) end
if undone > 0 or sessions ~= '' then
  raise_seq(pool, 0)
  notify_supervisor(pool, 'agents')
end
return undone
