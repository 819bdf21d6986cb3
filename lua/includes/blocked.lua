-- Providers that no call may reach for a time: a hash `blocked:NAME`, which is there only then. Its fields `throttled`,
-- `quota` and `broken` have the end in ms (0: until an operator clears it), the ms since which it lasts, and who told it. Once
-- `broken` has ended, one call tries the provider: `trial` has the ms until which it is awaited, and the call. Of a provider
-- that pools share, the scope of its limit has this hash, and each pool a copy (protocol rule 41).
--@include time: integer
--@include key: has_type
--@include notify: notify_supervisor

-- Longest life of a state that has an end, ms.
local longest_block_ms = 2678400000

-- How long a supervisor may take to carry out a command that clears a provider that pools share, ms.
local cleared_kept_ms = 86400000

-- Life of a state without an end: a century, ms.
local endless_ms = 3155760000000

-- Returns the end of a state in ms; math.huge: it lasts until it is cleared; nil: there is no such state.
local function parse_end(stored)
  local digits = stored and string.match(stored, '^(%d+) %d+ ')
  if not digits or #digits > 15 then return nil end
  return digits == '0' and math.huge or tonumber(digits)
end

-- Returns what keeps calls from a provider: nil, or the state (`throttled`, `quota`, `broken`; `trying`: a call tries the
-- provider), its end in ms (0: until it is cleared), and its stored value; `trial`: a call is to try it. `calls`: whether the
-- caller is a call, and not a start, so that it may be the one that a start is awaited for.
local function read_blocked(pool, name, now_ms, calls)
  local blocked = redis.call('HMGET', pool .. ':blocked:' .. name, 'throttled', 'quota', 'broken', 'trial')
  local throttled, quota, broken = parse_end(blocked.throttled), parse_end(blocked.quota), parse_end(blocked.broken)
  local kind, until_ms, stored
  if throttled and throttled > now_ms then kind, until_ms, stored = 'throttled', throttled, blocked.throttled end
  if quota and quota > math.max(now_ms, until_ms or 0) then kind, until_ms, stored = 'quota', quota, blocked.quota end
  if broken and broken > math.max(now_ms, until_ms or 0) then kind, until_ms, stored = 'broken', broken, blocked.broken end
  if kind then return kind, until_ms < math.huge and until_ms or 0, stored end
  if not broken then return nil end
  local awaited, call = string.match(blocked.trial or '', '^(%d+) (.*)$')
  if not awaited or #awaited > 15 or tonumber(awaited) <= now_ms or (calls and call == '') then return 'trial' end
  return 'trying', tonumber(awaited), blocked.broken
end

-- Notes that a call tries a broken provider, or, without a call, that a start of 5 s is to do so.
local function await_trial(pool, name, now_ms, call, until_ms)
  redis.call('HSET', pool .. ':blocked:' .. name, 'trial', integer(until_ms or now_ms + 5000) .. ' ' .. (call or ''))
end

-- Ends the trial of a call, if it tries the provider; returns whether it did.
local function end_trial(pool, name, call)
  local blocked_key = pool .. ':blocked:' .. name
  local trial = redis.call('HGET', blocked_key, 'trial')
  if not trial or string.match(trial, '^%d+ (.*)$') ~= call then return false end
  redis.call('HDEL', blocked_key, 'trial')
  return true
end

-- Keeps the states of a provider as long as the last of them counts.
local function keep_blocked(blocked_key, now_ms)
  local states = redis.call('HMGET', blocked_key, 'throttled', 'quota', 'broken')
  local latest = math.max(parse_end(states.throttled) or 0, parse_end(states.quota) or 0)
  local left_ms = math.max(0, latest - now_ms)
  -- A broken provider stays so after its end.
  if states.broken then left_ms = math.max(left_ms, longest_block_ms) end
  redis.call('PEXPIRE', blocked_key, integer(left_ms < math.huge and left_ms + 60000 or endless_ms))
end

-- Blocks a provider until a time in ms (math.huge: until it is cleared), unless the same state lasts longer. Returns the end
-- that the state has then.
local function put_blocked(pool, name, kind, until_ms, now_ms, told)
  local blocked_key = pool .. ':blocked:' .. name
  local present = parse_end(redis.call('HGET', blocked_key, kind)) or 0
  if present >= until_ms and present > now_ms then return present end
  local shown = until_ms < math.huge and integer(until_ms) or '0'
  redis.call('HSET', blocked_key, kind, shown .. ' ' .. integer(now_ms) .. ' ' .. told)
  keep_blocked(blocked_key, now_ms)
  return until_ms
end

-- Returns whether the stored limits of a provider say that pools share it.
local function is_shared(shown)
  return shown and string.sub(shown, -7) == ' shared'
end

-- Ends all states of a provider. Of one that pools share, `cleared` asks the supervisor to end those of its scope. A key of
-- another type must not fail a command that has been stored.
local function clear_blocked(pool, name, now_ms)
  local blocked_key, list_key = pool .. ':blocked:' .. name, pool .. ':providers'
  redis.call('UNLINK', blocked_key)
  if has_type({}, list_key, 'hash') and is_shared(redis.call('HGET', list_key, name)) then
    redis.call('HSET', blocked_key, 'cleared', integer(now_ms))
    redis.call('PEXPIRE', blocked_key, integer(cleared_kept_ms))
    notify_supervisor(pool, 'providers')
  end
  local usage_key = pool .. ':provider:usage:' .. name
  if has_type({}, usage_key, 'hash') then redis.call('HDEL', usage_key, 'fails', 'trips') end
end
