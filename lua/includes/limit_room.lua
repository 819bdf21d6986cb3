-- How many starts the limits of an agent allow now, in every window of each limit, and when the next slot opens.
-- `names` is blank-separated; a limit without a definition allows nothing. Answers room, next_free_us (0: now).
local function limit_room(pool, names, now, want)
  local room, next_free = want, 0
  for name in string.gmatch(names, '%S+') do
    local spec = redis.call('HGET', pool .. ':limits', name)
    if not spec then return 0, 0 end
    local count, window = string.match(spec, '^(%d+) (%d+)$')
    count, window = tonumber(count), tonumber(window)
    local limit_key = pool .. ':limit:' .. name
    -- Open above, so that a clock which stepped back reopens nothing: grants of what is now the future count too.
    local open_after = string.format('(%.0f', now - window)
    -- What stands at infinity keeps the time of a returned grant (`return_slots`).
    local used = redis.call('ZCOUNT', limit_key, open_after, '(+inf')
    local free = count - used
    if free <= 0 then
      local blocking = redis.call('ZRANGE', limit_key, open_after, '+inf', 'BYSCORE', 'LIMIT', used - count, 1, 'WITHSCORES')
      local opens = tonumber(blocking[2]) + window
      if opens > next_free then next_free = opens end
      free = 0
    end
    if free < room then room = free end
  end
  return room, next_free
end
