-- Earlier attempts of a task, as fields of its record.
--@include time: integer

-- Attempts that a record keeps.
local kept_attempts = 20

-- Bytes that are kept of the reason of an attempt.
local kept_reason_bytes = 200

-- Attempts whose traceback a record keeps.
local kept_errors = 20

-- Bytes that are kept of a traceback.
local kept_error_bytes = 16384

-- Adds the traceback of a failed attempt to `fields`, cut if a program of another maker sent a longer one, and removes
-- that of the attempt `kept_errors` before.
local function add_error(task_key, fields, attempt, text)
  if #text > kept_error_bytes then text = string.sub(text, 1, kept_error_bytes) end
  fields[#fields + 1], fields[#fields + 2] = 'error:' .. attempt, text
  if attempt > kept_errors then redis.call('HDEL', task_key, 'error:' .. attempt - kept_errors) end
end

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
