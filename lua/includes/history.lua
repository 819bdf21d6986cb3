-- Earlier attempts of a task, as fields of its record.
--@include time: integer

-- Attempts that a record keeps.
local kept_attempts = 20

-- Bytes that are kept of the reason of an attempt.
local kept_reason_bytes = 200

-- Adds an attempt that ends to `fields`, a flat list of fields to store: `ran` counts attempts, `ran:N` has the Nth.
-- Removes the oldest one beyond `kept_attempts`. `ran` is the count before, or false; `began_ms` is 0 if no begin is known.
local function add_attempt(task_key, fields, ran, outcome, attempt, generation, began_ms, now_ms, agent, worker, reason)
  local number = tonumber(ran or 0) + 1
  -- A generation is the time of the grant in ms, or slightly later.
  if began_ms > 0 then began_ms = math.max(began_ms, tonumber(generation)) end
  local n = #fields
  fields[n + 1], fields[n + 2], fields[n + 3] = 'ran', number, 'ran:' .. number
  fields[n + 4] = outcome .. ' ' .. attempt .. ' ' .. generation .. ' ' .. integer(began_ms) .. ' ' .. integer(now_ms) .. ' '
    .. agent .. ' ' .. worker .. ' ' .. string.sub(reason, 1, kept_reason_bytes)
  if number > kept_attempts then redis.call('HDEL', task_key, 'ran:' .. number - kept_attempts) end
end
