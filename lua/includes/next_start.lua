-- When one limit lets a task start that has `ahead` others before it, as far as this limit alone decides: each start
-- may follow, a window later, the one that stands `count` starts before it. Answers count, window_us, used (starts
-- inside the window) and next_us (0: at once); nothing for a limit without a definition.
--@include limit_clock
local function next_start(pool, name, now, ahead)
  local spec = redis.call('HGET', pool .. ':limits', name)
  if not spec then return end
  local count, window = string.match(spec, '^(%d+) (%d+)$')
  count, window = tonumber(count), tonumber(window)
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
