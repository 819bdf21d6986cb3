-- Rate limits.
--@include notify: notify_supervisor
--@include desired: held_until
--@include blocked: read_blocked, await_trial

-- Returns the time that a limit counts by: now, or the time of its last grant while the clock is behind it. The second
-- value is the member that keeps the time of a returned grant, if that grant was the last.
local function limit_clock(limit_key, now)
  local last = redis.call('ZRANGE', limit_key, -1, -1, 'WITHSCORES')
  local anchor = last[1] and string.match(last[1], '^%d+$')
  local time = tonumber(anchor or last[2])
  if time and time > now then return time, anchor end
  return now, anchor
end

-- Returns count and window in us of a definition; nothing for one that no program writes, which counts as missing.
local function parse_limit(spec)
  if not spec or #spec > 32 then return end
  local count, window = string.match(spec, '^(%d+) (%d+)$')
  count, window = tonumber(count), tonumber(window)
  if not count or count < 1 or count > 1e9 or window < 1000 or window > 1e13 then return end
  return count, window
end

-- Starts of a definition that limits none, of a provider without a rate of starts. Older programs count them.
local any_starts = 1e9

-- Returns how many starts the limits of an agent allow now, when the next slot opens in us (0: now, or unknown), and the
-- limits whose provider is tried, in a list; nil: none. `names` is blank-separated; an undefined limit allows none, one
-- that is paused or whose provider is blocked none before the end, and one whose provider is to be tried one.
local function limit_room(pool, names, now, want)
  local room, next_free, trials = want, 0, nil
  for name in string.gmatch(names, '%S+') do
    local count, window = parse_limit(redis.call('HGET', pool .. ':limits', name))
    if not count then return 0, 0 end
    local now_ms = math.floor(now / 1000)
    local held_us = held_until(pool, 'hold:limit:' .. name, now_ms) * 1000
    local kind, until_ms = read_blocked(pool, name, now_ms)
    if kind == 'trial' then
      room, trials = math.min(room, 1), trials or {}
      trials[#trials + 1] = name
    elseif kind then
      room, held_us = 0, math.max(held_us, until_ms * 1000)
    end
    if held_us > 0 then
      room = 0
      if held_us > next_free then next_free = held_us end
    end
    local limit_key = pool .. ':limit:' .. name
    -- Counts grants with later times too, so that a clock that stepped back reopens nothing.
    local open_after = string.format('(%.0f', now - window)
    -- A member at infinity keeps the time of a returned grant (`return_slots`).
    local used = count < any_starts and redis.call('ZCOUNT', limit_key, open_after, '(+inf') or 0
    local free = count - used
    if free <= 0 then
      local blocking = redis.call('ZRANGE', limit_key, open_after, '+inf', 'BYSCORE', 'LIMIT', used - count, 1,
        'WITHSCORES')
      local opens = tonumber(blocking[2]) + window
      if opens > next_free then next_free = opens end
      free = 0
    end
    if free < room then room = free end
  end
  return room, next_free, trials
end

-- Returns count, window_us, used and next_us of one limit: used counts starts inside the window, next_us is when a task
-- with `ahead` tasks before it may start (0: now). Each start may follow the one `count` starts before it after a
-- window. Returns nothing for an undefined limit.
local function next_start(pool, name, now, ahead)
  local count, window = parse_limit(redis.call('HGET', pool .. ':limits', name))
  if not count then return end
  local limit_key = pool .. ':limit:' .. name
  local open_after = string.format('(%.0f', now - window)
  local used = redis.call('ZCOUNT', limit_key, open_after, '(+inf')
  local rounds = math.floor(ahead / count) + 1
  local before = used + ahead - rounds * count
  if before < 0 then
    if rounds == 1 then return count, window, used, 0 end
    local clock = limit_clock(limit_key, now)
    return count, window, used, clock + (rounds - 1) * window
  end
  local start = redis.call('ZRANGE', limit_key, open_after, '+inf', 'BYSCORE', 'LIMIT', before, 1, 'WITHSCORES')
  return count, window, used, tonumber(start[2]) + rounds * window
end

-- Takes one slot of every limit per grant; `grants` is a list of "task:generation" (protocol rule 14). The providers in
-- `trials`, a list or nil, are tried by it.
local function take_slots(pool, names, now, grants, trials)
  for i = 1, trials and #trials or 0 do await_trial(pool, trials[i], math.floor(now / 1000)) end
  for name in string.gmatch(names, '%S+') do
    local limit_key = pool .. ':limit:' .. name
    local count, window = string.match(redis.call('HGET', pool .. ':limits', name), '^(%d+) (%d+)$')
    count, window = tonumber(count), tonumber(window)
    if count < any_starts then
      -- Not before the last grant, so that the window ends in time after the clock stepped back.
      local clock, anchor = limit_clock(limit_key, now)
      local scored = {}
      for i = 1, #grants do
        scored[2 * i - 1] = string.format('%.0f', clock)
        scored[2 * i] = grants[i]
      end
      redis.call('ZADD', limit_key, unpack(scored))
      if anchor then redis.call('ZREM', limit_key, anchor) end
      redis.call('ZREMRANGEBYSCORE', limit_key, '-inf', string.format('%.0f', clock - window))
      redis.call('PEXPIRE', limit_key, math.ceil(window / 1000) + 1000)
    end
  end
end

-- Returns the slots of a grant that never started. The last grant of a limit leaves its time behind, because older
-- grants were dropped by it: a clock that steps back must not reopen their window.
local function return_slots(pool, agent, id, generation)
  local limits = redis.call('HGET', pool .. ':agent:' .. agent, 'limits')
  if not limits or limits == '' then return end
  for name in string.gmatch(limits, '%S+') do
    local limit_key, grant = pool .. ':limit:' .. name, id .. ':' .. generation
    -- The last two members with their scores; a single member leaves the first two values out.
    local last = redis.call('ZRANGE', limit_key, -2, -1, 'WITHSCORES')
    local n = #last
    if last[n - 1] == grant and last[n - 2] ~= last[n] then
      -- The member's name is the time; no grant is called so, and no window counts infinity. Added before the grant is
      -- removed, so that the key keeps its lifetime.
      redis.call('ZADD', limit_key, '+inf', last[n])
    end
    redis.call('ZREM', limit_key, grant)
  end
  notify_supervisor(pool, 'agent:' .. agent)
end

-- Overrides the rate that agents or settings define; that one is kept under `=NAME`, which no limit is called. Without
-- a count restores it.
local function set_limit(pool, name, count, window)
  local limits_key = pool .. ':limits'
  local defined = redis.call('HGET', limits_key, '=' .. name)
  if count then
    local current = redis.call('HGET', limits_key, name)
    if not defined and current then redis.call('HSET', limits_key, '=' .. name, current) end
    redis.call('HSET', limits_key, name, string.format('%.0f %.0f', count, window))
  elseif defined then
    redis.call('HSET', limits_key, name, defined)
    redis.call('HDEL', limits_key, '=' .. name)
  end
end
