#!lua flags=no-writes
-- Reads length and age of up to 500 sets of ready tasks: queues, suspects, tasks that a stop holds.
-- returns: per set: tasks, ms since when the oldest is ready of the first task of the highest and of the lowest
--   priority (0: none)
-- repeat: reads again
local pool = KEYS[1]                  -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1]) -- rows: suffix
--@include record: rank_of
--@include time: integer

local function rank_of_task(id) return rank_of(redis.call('HGET', pool .. ':task:' .. id, 'rank')) end

local answers = {}
for i = 1, #rows do
  local queue_key = pool .. ':' .. rows[i].suffix
  local count, since_ms = redis.call('ZCARD', queue_key), 0
  if count > 0 then
    local head = redis.call('ZRANGE', queue_key, 0, 0, 'WITHSCORES')
    since_ms = tonumber(head[2]) - rank_of_task(head[1])
    -- With strict priorities the tasks of the lowest one wait the longest. With aging this is the head once more.
    local last = count > 1 and redis.call('ZRANGE', queue_key, -1, -1)[1]
    if last then
      local lowest = rank_of_task(last)
      local first = redis.call('ZRANGE', queue_key, integer(lowest), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
      if first[1] and first[1] ~= head[1] then since_ms = math.min(since_ms, tonumber(first[2]) - rank_of_task(first[1])) end
    end
  end
  answers[2 * i - 1], answers[2 * i] = count, integer(since_ms)
end
return answers
