-- The record of a task, a hash; docs/internals/data-model.md lists its fields.
--@include time: day_s

-- Reads fields of a task's record. The loader names the returned values after the literal fields: `task.state`. A
-- missing field is false.
local function read_task(task_key, ...)
  return redis.call('HMGET', task_key, ...)
end

-- Reads a task that has `count` fields. Returns a list of those that `first` names, and a table of the others by name; nil if it has
-- one that `others` does not name, each between commas. Not read are one behind a `=`, which all tasks have, and one behind a `-`,
-- which few have. Tasks of one call are mostly alike: `layouts`, empty at first, has the names that the last task with this number had,
-- so that this reads only what is there. They say nothing of other tasks if one behind a `-` was among them.
local function read_alike(task_key, count, first, others, layouts)
  local layout = layouts[count]
  if layout == false then return nil end
  if layout then
    local names, values, task = layout.names, redis.call('HMGET', task_key, unpack(layout.names)), {}
    local alike = values[1]
    for i = 2, layout.first do alike = alike and values[i] end
    for i = layout.first + 1, #names do
      task[names[i]] = values[i]
      alike = alike and values[i]
    end
    if alike then return values, task end
  end
  local names = {}
  for name in string.gmatch(first, '%a+') do names[#names + 1] = name end
  layout = {names = names, first = #names}
  local present, all_read = redis.call('HKEYS', task_key), true
  for i = 1, #present do
    local name = ',' .. present[i] .. ','
    if string.find(others, name, 1, true) then
      names[#names + 1] = present[i]
    elseif string.find(others, ',-' .. present[i] .. ',', 1, true) then
      all_read = false
    elseif not string.find(first, name, 1, true) and not string.find(others, ',=' .. present[i] .. ',', 1, true) then
      layouts[count] = false
      return nil
    end
  end
  if all_read then layouts[count] = layout end
  local values, task = redis.call('HMGET', task_key, unpack(names)), {}
  for i = layout.first + 1, #names do task[names[i]] = values[i] end
  return values, task
end

-- Returns whether a state is final.
local function has_ended(state)
  return state == 'succeeded' or state == 'dead' or state == 'cancelled' or state == 'expired'
end

-- Returns whether a task of this state waits, in any place.
local function is_waiting(state)
  return state == 'ready' or state == 'scheduled' or state == 'waiting' or state == 'awaiting_input' or state == 'joining'
    or state == 'awaiting_tasks'
end

-- Returns the seconds that an ended task is kept: its result lifetime, at least 5 minutes (protocol rule 22). The
-- default, an hour, is not stored; with an idempotency key it is a day, which programs of format 2 do not store either.
local function lifetime(ttl, at_least_s, idem)
  local seconds = tonumber(ttl) or (idem and 86400) or 3600
  -- A damaged record may hold a number that Redis takes for no lifetime, also one that is no number.
  if not (seconds >= 300 and seconds <= 3200000000) then seconds = seconds > 300 and 3200000000 or 300 end
  if at_least_s and seconds < at_least_s then seconds = at_least_s end
  return seconds
end

-- Extends the lifetime of a running task, its idempotency key and its output.
local function keep_alive(pool, id, idem, out)
  redis.call('EXPIRE', pool .. ':task:' .. id, day_s, 'GT')
  if idem then redis.call('EXPIRE', pool .. ':idem:' .. idem, day_s, 'GT') end
  if out then redis.call('EXPIRE', pool .. ':out:' .. id, day_s, 'GT') end
end

-- Returns what the priority adds to the time in a task's score. The default, normal priority, is not stored.
local function rank_of(stored)
  return tonumber(stored) or 20000000000000
end

-- Returns the score that an assigned task had in its queue.
local function original_score(task_key)
  return string.match(redis.call('HGET', task_key, 'at'), '(%S+)$')
end

-- Returns the next generation: higher than the last and not below the time, so that none is issued twice, even after
-- the server lost its last second (protocol rule 1).
local function next_generation(generation, now_ms)
  local next_one = tonumber(generation) + 1
  if now_ms > next_one then return now_ms end
  return next_one
end

-- Returns the number of the running attempt, or of the next one.
local function attempt_number(fails, deaths)
  return tonumber(fails or 0) + tonumber(deaths or 0) + 1
end

-- Returns the failures and deaths before the last operator retry, which no longer count; 0 and 0 without one.
local function forgiven_failures(requeued)
  local fails, deaths = string.match(requeued or '', '^%d+ (%d+) (%d+) ')
  return tonumber(fails or 0), tonumber(deaths or 0)
end

-- Returns the name of a field whose value makes a record unusable, or nil.
local function corrupt_field(task)
  if not task.state or not string.match(task.state, '^[%l_]+$') then return 'state' end
  if not string.match(task.gen or '', '^%d+$') then return 'gen' end
  for _, name in ipairs({'by', 'fails', 'deaths', 'due', 'blamed', 'group', 'alone'}) do
    if task[name] and not string.match(task[name], '^%d+$') then return name end
  end
  if task.queue and not string.match(task.queue, '^agent:.') and not string.match(task.queue, '^skill:.') then return 'queue' end
  -- MessagePack: an array that is not empty, fixarray (145 to 159) or array 16 (220), whose first item is a text: str 8
  -- (217), or fixstr with 1 to 31 bytes (161 to 191).
  local opens, size = string.byte(task.env or '', 1, 2)
  if not size or not ((opens >= 145 and opens <= 159) or opens == 220) then return 'env' end
  if size ~= 217 and (size < 161 or size > 191) then return 'env' end
  return nil
end
