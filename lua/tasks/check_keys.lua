#!lua flags=allow-oom
-- Checks the type and the lifetime of up to 500 keys; with `repair` sets missing lifetimes, and renames keys of another
-- type, because every script that uses one fails. A key that guards stays: without it something would happen that it forbids.
-- codes: wrong-type | guarded-type (it stays) | no-lifetime
-- returns: per finding: row code repaired (1 or 0)
-- repeat: finds nothing that it has repaired
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: suffix type keep_s guards
local repair  = ARGV[2]                   -- str: 1 = repair what is found
local now_arg = ARGV[3]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include key: has_type, set_aside
--@include counter: increment_counters

local now = now_us(now_arg)
local types, answers, repaired = {}, {}, 0
local counters_sound = has_type(types, pool .. ':stats:TOTAL', 'hash')
  and has_type(types, pool .. ':stats:' .. integer(math.floor(now / 60000000)), 'hash')

for i = 1, #rows do
  local key, type, keep_s = pool .. ':' .. rows[i].suffix, rows[i].type, rows[i].keep_s
  local code
  if type ~= 'any' and not has_type(types, key, type) then
    code = rows[i].guards == 1 and 'guarded-type' or 'wrong-type'
  elseif keep_s > 0 and redis.call('TTL', key) == -1 then
    code = 'no-lifetime'
  end
  if code then
    local done = repair == '1' and code ~= 'guarded-type'
    if done then
      if code == 'wrong-type' then
        set_aside(pool, types, rows[i].suffix, type, now)
      else
        redis.call('EXPIRE', key, keep_s)
      end
      repaired = repaired + 1
    end
    local n = #answers
    answers[n + 1], answers[n + 2], answers[n + 3] = i, code, done and 1 or 0
  end
end
if repaired > 0 and counters_sound then increment_counters(pool, now, {repaired = repaired}) end
return answers
