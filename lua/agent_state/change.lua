#!lua
-- Changes fields of an agent's state: all rows or none.
-- modes: set | bump (adds the value to a whole number; a missing field counts as 0)
-- returns: ok, per row the new number of a bump or '' | duplicate, the same | fenced value | occupied value ms | full |
--          number field (a bump of a field that is no whole number below 2^53)
-- repeat: returns duplicate and the first call's result
local scope  = KEYS[1]                      -- key: root of the agent's slot
local caller = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local rows   = cmsgpack.unpack(ARGV[2])     -- rows: field mode value
local most   = tonumber(ARGV[3])            -- int: fields that an agent may have
--@include time: day_s, integer
--@include lock: refuse_change
--@include dedup: earlier_reply, store_reply

local largest = 9007199254740991
local state_key = scope .. ':state'
local op = 'state:' .. caller.op
-- Programs of an older version store op ids without their kind; `=` marks those that callers choose and may repeat.
local reply = earlier_reply(scope, op)
  or string.sub(caller.op, 1, 1) == '=' and earlier_reply(scope, caller.op)
if reply then return reply end
local refused = refuse_change(scope, caller)
if refused then return refused end
local fields, written, numbers, new = {}, {}, {}, 0
for i = 1, #rows do fields[i] = rows[i].field end
local stored = redis.call('HMGET', state_key, unpack(fields))
for i = 1, #rows do
  local field, mode, value = unpack(rows[i])
  numbers[i] = ''
  if mode == 'bump' then
    local sum = tonumber(value)
    if stored[i] then
      if not string.match(stored[i], '^-?%d+$') then return {'number', field} end
      local held = tonumber(stored[i])
      if held > largest or held < -largest then return {'number', field} end
      sum = sum + held
    end
    if sum > largest or sum < -largest then return {'number', field} end
    -- Not -0.
    value = sum == 0 and '0' or integer(sum)
    numbers[i] = value
  end
  if not stored[i] then new = new + 1 end
  written[#written + 1] = field
  written[#written + 1] = value
end
if new > 0 and redis.call('HLEN', state_key) + new > most then return {'full'} end
redis.call('HSET', state_key, unpack(written))
redis.call('EXPIRE', state_key, 7 * day_s)
store_reply(scope, op, 600000, 20000, numbers)
return {'ok', unpack(numbers)}
