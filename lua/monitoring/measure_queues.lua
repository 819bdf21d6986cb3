#!lua flags=no-writes
-- Reads length and age of up to 250 sets of ready tasks: queues, suspects, tasks that a stop holds.
-- returns: per set: tasks, ms since when the oldest is ready of the first task of the highest and of the lowest
--   priority (0: none)
-- repeat: reads again
local pool = KEYS[1]                  -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1]) -- rows: suffix
--@include record: rank_of
--@include time: integer

-- Returns what the priority of a task adds to the time in its score. Strict priorities are multiples of 10^13, which the
-- other ones do not reach (`STRICT_AGING_MS` in orchestrator/tasks/submission.py); only the record has those.
local strict = 10000000000000
local function rank_in(id, score)
  if score >= strict then return math.floor(score / strict) * strict end
  return rank_of(redis.call('HGET', pool .. ':task:' .. id, 'rank'))
end

local answers = {}
for i = 1, #rows do
  local queue_key = pool .. ':' .. rows[i].suffix
  local count, since_ms = redis.call('ZCARD', queue_key), 0
  if count > 0 then
    local head = redis.call('ZRANGE', queue_key, 0, 0, 'WITHSCORES')
    local score = tonumber(head[2])
    local rank = rank_in(head[1], score)
    since_ms = score - rank
    local last = count > 1 and redis.call('ZRANGE', queue_key, -1, -1, 'WITHSCORES')
    local lowest = last and rank_in(last[1], tonumber(last[2])) or rank
    -- With strict priorities the tasks of the lowest one wait the longest.
    if lowest > rank and lowest >= strict then
      local first = redis.call('ZRANGE', queue_key, integer(lowest), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
      since_ms = math.min(since_ms, tonumber(first[2]) - lowest)
    end
  end
  answers[2 * i - 1], answers[2 * i] = count, integer(since_ms)
end
return answers
