-- The record of a task: a hash whose fields docs/data-model.md lists.

-- Read fields of a task's record, by their literal names: the answer has each under its name (`task.state`), false
-- when the record has no such field.
local function read_task(task_key, ...)
  return redis.call('HMGET', task_key, ...)
end

-- Whether a stored state is final: nothing leaves it by itself.
local function has_ended(state)
  return state == 'succeeded' or state == 'dead' or state == 'cancelled' or state == 'expired'
end

-- Seconds that an ended task is kept: its own result lifetime, at least 5 minutes (protocol rule 22). The usual one, a
-- day, is not stored.
local function lifetime(ttl, at_least_s)
  local seconds = tonumber(ttl) or 86400
  if seconds < 300 then seconds = 300 end
  if at_least_s and seconds < at_least_s then seconds = at_least_s end
  return seconds
end

-- Let a task that somebody works on outlive the time that it was allowed to wait, and its key and output with it.
local function keep_alive(pool, id, idem, out)
  redis.call('EXPIRE', pool .. ':task:' .. id, 86400, 'GT')
  if idem then redis.call('EXPIRE', pool .. ':idem:' .. idem, 86400, 'GT') end
  if out then redis.call('EXPIRE', pool .. ':out:' .. id, 86400, 'GT') end
end

-- What the priority of a task adds to the time in its score. The usual one is not stored: normal, where nothing ages.
local function rank_of(stored)
  return tonumber(stored) or 20000000000000
end

-- The score that an assigned task had in its queue.
local function original_score(task_key)
  return string.match(redis.call('HGET', task_key, 'at'), '(%S+)$')
end

-- The next generation: never given out twice, not even after the server lost its last second (protocol rule 1).
local function next_generation(generation, now_ms)
  local next_one = tonumber(generation) + 1
  if now_ms > next_one then return now_ms end
  return next_one
end

-- Failures and deaths that count no more, because the task was requeued since; 0 and 0 of one that never was.
local function forgiven_failures(requeued)
  local fails, deaths = string.match(requeued or '', '^%d+ (%d+) (%d+) ')
  return tonumber(fails or 0), tonumber(deaths or 0)
end

-- What makes the record of a task useless to everybody who meets it: the name of the field, or nil.
local function corrupt_field(task)
  if not task.state or not string.match(task.state, '^[%l_]+$') then return 'state' end
  if not string.match(task.gen or '', '^%d+$') then return 'gen' end
  for _, name in ipairs({'by', 'fails', 'deaths', 'due'}) do
    if task[name] and not string.match(task[name], '^%d+$') then return name end
  end
  if task.queue and not string.match(task.queue, '^agent:.') and not string.match(task.queue, '^skill:.') then return 'queue' end
  -- MessagePack: an array whose first item is a text that is not empty.
  local opens, size = string.byte(task.env or '', 1, 2)
  if not size or not ((opens > 144 and opens < 160) or opens == 220) then return 'env' end
  if size ~= 217 and (size < 161 or size > 191) then return 'env' end
  return nil
end
