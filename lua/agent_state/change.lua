#!lua
-- Change fields of what an agent says of itself: all rows or none.
-- modes: set | bump (the value is what to add to a whole number; nothing counts as 0)
-- answers: ok, per row the new number of a bump, else empty | duplicate (the same) | fenced value | full |
-- number field (bump of what is no whole number below 2^53)
-- repeat: answers duplicate, with what the first call answered
local scope = KEYS[1]                   -- key: root of the agent's slot
local op    = ARGV[1]                   -- str: id of the call
local lock  = ARGV[2]                   -- str: the lock that is shown; empty: none
local token = ARGV[3]                   -- str: what it holds for the caller
local rows  = cmsgpack.unpack(ARGV[4])  -- rows: field mode value
local most  = tonumber(ARGV[5])         -- int: fields that there may be
--@include time: integer
--@include lock: fenced_by
--@include dedup: earlier_answer, store_answer

local largest = 9007199254740991
local state_key = scope .. ':state'
local first = earlier_answer(scope, op)
if first then return {'duplicate', unpack(cmsgpack.unpack(first))} end
if lock ~= '' then
  local owner = fenced_by(scope, lock, token)
  if owner then return {'fenced', owner} end
end
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
redis.call('EXPIRE', state_key, 604800)
store_answer(scope, op, cmsgpack.pack(numbers))
return {'ok', unpack(numbers)}
