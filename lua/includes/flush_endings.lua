-- Write what the ended tasks of one call share: whose turn in a lane came, one event, one reply entry per waiting client, the counters.
--@include flush_turns
--@include increment_counters
local function flush_endings(pool, ending)
  flush_turns(pool, ending)
  if #ending.events > 0 then
    redis.call('XADD', pool .. ':events', 'MAXLEN', '~', 1000, '*', unpack(ending.events))
  end
  for client, replies in pairs(ending.replies) do
    local replies_key = pool .. ':replies:' .. client
    redis.call('XADD', replies_key, 'MAXLEN', '~', 1000, '*', unpack(replies))
    redis.call('EXPIRE', replies_key, 3600)
  end
  increment_counters(pool, ending.now, ending.counts)
end
