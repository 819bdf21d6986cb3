#!lua flags=allow-oom
-- Checks that held locks of a scope are listed; with `repair` lists them.
-- codes: unlisted-lock (the list of a scope misses a lock that is held)
-- returns: per finding: row code place repaired (1 or 0)
-- repeat: finds nothing that it has repaired
local scope   = KEYS[1]                   -- key: root of the scope's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: lock
local repair  = ARGV[2]                   -- str: 1 = repair what is found
local now_arg = ARGV[3]                   -- time: test override, microseconds
--@include time: now_us
--@include key: has_type
--@include lock: is_reserved, list_lock

local now_ms = math.floor(now_us(now_arg) / 1000)
local locks_key = scope .. ':locks'
local types, answers = {}, {}
if not has_type(types, locks_key, 'zset') then return answers end

for i = 1, #rows do
  local lock = rows[i].lock
  local lock_key = scope .. ':' .. lock
  local holder = has_type(types, lock_key, 'string') and redis.call('GET', lock_key)
  local left_ms = holder and redis.call('PTTL', lock_key) or 0
  -- A lock that is kept for a waiter is listed until it lapses, or taken by then.
  if left_ms > 0 and not is_reserved(holder) and not redis.call('ZSCORE', locks_key, lock) then
    if repair == '1' then list_lock(scope, lock, now_ms, left_ms) end
    local n = #answers
    answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4] = i, 'unlisted-lock', '', repair == '1' and 1 or 0
  end
end
return answers
