#!lua flags=allow-oom
-- Cancels tasks below cancelled ones, with their own children: looks at up to `limit` tasks, and keeps a note of the rest.
-- returns: tasks that ended, running ones that were told to stop, left (1: more are to be cancelled)
-- repeat: cancels further tasks
local pool    = KEYS[1]            -- key: root of the pool's slot
local limit   = tonumber(ARGV[1])  -- int: look at most at this many tasks
local now_arg = ARGV[2]            -- time: test override, microseconds
--@include time: now_us, integer
--@include ending: start_endings, flush_endings
--@include cancel: start_cancelling, cancel_task, flush_cancelling, note_children

local cancelling_key = pool .. ':cancelling'
local ending, cancelling = start_endings(now_us(now_arg)), start_cancelling()
local counts = {ended = 0, signalled = 0}

-- Cancels the next children of the parent that was noted last, so that few notes exist at a time; returns how many.
local function cancel_next(note, most)
  local parent, first, reason = string.match(note, '^(%S+) (%d+) (.*)$')
  if not parent then
    redis.call('RPOP', cancelling_key)
    return 0
  end
  -- Clients write these lists. What cannot be read must not keep the others waiting.
  local ids = redis.pcall('LRANGE', pool .. ':children:' .. parent, first, integer(first + most - 1))
  if ids.err then ids = {} end
  if #ids < most then
    redis.call('RPOP', cancelling_key)
  else
    redis.call('LSET', cancelling_key, -1, parent .. ' ' .. integer(first + most) .. ' ' .. reason)
  end
  for i = 1, #ids do
    local sound, status = pcall(function() return cancel_task(pool, ending, cancelling, ids[i], reason) end)
    if sound and counts[status] then counts[status] = counts[status] + 1 end
    note_children(pool, ids[i], reason)
  end
  return #ids
end

while limit > 0 do
  local note = redis.call('LINDEX', cancelling_key, -1)
  if not note then break end
  -- A note without children counts too.
  limit = limit - math.max(1, cancel_next(note, limit))
end
flush_cancelling(pool, cancelling)
flush_endings(pool, ending)
return {counts.ended, counts.signalled, redis.call('EXISTS', cancelling_key)}
