#!lua flags=allow-oom
-- Note which slots of the desired state carry a true signature, and undo what does not: the last proved one comes back.
-- A row whose slot has changed since the caller read it changes nothing.
-- rows: slot, the value that was read ('' there was none), 1 = its signature is true, and the rate of the limit that comes back
-- answers: how many were undone
-- repeat: changes nothing
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: slot value proved starts window_us
--@include in_force
--@include set_limit
--@include ring

local desired_key = pool .. ':desired'
local undone = 0

local function prove(row)
  local slot, value = row[1], row[2]
  local proved_slot = 'proved:' .. slot
  if (redis.call('HGET', desired_key, slot) or '') ~= value then return end
  if row[3] == '1' then
    if string.byte(value) == 49 then
      redis.call('HSET', desired_key, proved_slot, value)
    else
      redis.call('HDEL', desired_key, slot, proved_slot)
    end
    return
  end
  local was, proved = in_force(pool, slot), redis.call('HGET', desired_key, proved_slot)
  if proved then redis.call('HSET', desired_key, slot, proved) else redis.call('HDEL', desired_key, slot) end
  local is = in_force(pool, slot)
  if string.sub(slot, 1, 13) == 'stop:session:' and was ~= is then
    redis.call('HINCRBY', desired_key, 'sessions', is and 1 or -1)
  end
  local limit = string.match(slot, '^limit:(.*)$')
  if limit then set_limit(pool, limit, row[4], row[5]) end
  undone = undone + 1
end

for i = 1, #rows do prove(rows[i]) end
if undone > 0 then
  redis.call('HINCRBY', desired_key, 'seq', 1)
  ring(pool, 'agents')
end
return undone
