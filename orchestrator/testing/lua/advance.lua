#!lua
-- Lets time pass for waiting tasks: moves stored times back. Moves due times, next fire times of schedules, deadlines of
-- questions and joins, `start_by`, scores in queues, and starts inside rate-limit windows; `advance_providers` moves the times of
-- providers. Does not move leases, lifetimes of keys, and what a worker or a handler measures itself.
-- returns: ok
-- repeat: moves time again
local pool  = KEYS[1]            -- key: root of the pool's slot
local by_ms = tonumber(ARGV[1])  -- int: time that passes

local function move(key, amount)
  local members = redis.call('ZRANGE', key, 0, -1)
  for i = 1, #members do redis.call('ZINCRBY', key, amount, members[i]) end
  return members
end

local function move_start_by(id)
  local task_key = pool .. ':task:' .. id
  if redis.call('HEXISTS', task_key, 'by') == 1 then redis.call('HINCRBY', task_key, 'by', -by_ms) end
end

local back_ms, back_us = string.format('-%.0f', by_ms), string.format('-%.0f', by_ms * 1000)
move(pool .. ':scheduled', back_ms)
local asking = move(pool .. ':asking', back_ms)
for i = 1, #asking do
  -- An answered task returns to the score in its record.
  local task_key = pool .. ':task:' .. asking[i]
  local where, score = string.match(redis.call('HGET', task_key, 'at') or '', '^(%S+ %S+) (%S+)$')
  if where then redis.call('HSET', task_key, 'at', where .. ' ' .. string.format('%.0f', score - by_ms)) end
end
local joining = move(pool .. ':joining', back_ms)
for i = 1, #joining do
  -- The script that ends a join reads its deadline and its old place in the record.
  local task_key = pool .. ':task:' .. joining[i]
  local where, score = string.match(redis.call('HGET', task_key, 'at') or '', '^(%S+ %S+) (%S+)$')
  if where then redis.call('HSET', task_key, 'at', where .. ' ' .. string.format('%.0f', score - by_ms)) end
  local number = string.match(redis.call('HGET', task_key, 'join') or '', '^%d+ (%d+)')
  local began, until_ms = string.match(number and redis.call('HGET', task_key, 'join:' .. number) or '', '^(%d+) (%d+)')
  if until_ms and until_ms ~= '0' then
    redis.call('HSET', task_key, 'join:' .. number, began .. ' ' .. string.format('%.0f', until_ms - by_ms))
  end
end
local following = redis.call('ZRANGE', pool .. ':after', 0, -1)
for i = 1, #following do
  -- When its predecessors have ended, it is due at a time that the record has.
  local task_key = pool .. ':task:' .. following[i]
  local delay_ms, at_ms = string.match(redis.call('HGET', task_key, 'later') or '', '^(%d+) (%d+)$')
  if at_ms and at_ms ~= '0' then
    redis.call('HSET', task_key, 'later', delay_ms .. ' ' .. string.format('%.0f', math.max(1, at_ms - by_ms)))
  end
end
local expiring = move(pool .. ':expiring', back_ms)
for i = 1, #expiring do move_start_by(expiring[i]) end
local queues = redis.call('SMEMBERS', pool .. ':queues')
for i = 1, #queues do move(pool .. ':queue:' .. queues[i], back_ms) end
local suspected = redis.call('SMEMBERS', pool .. ':suspects')
for i = 1, #suspected do move(pool .. ':suspects:' .. suspected[i], back_ms) end
local scopes = redis.call('SMEMBERS', pool .. ':held')
for i = 1, #scopes do move(pool .. ':held:' .. scopes[i], back_ms) end
local agents = redis.call('ZRANGE', pool .. ':agents', 0, -1)
for i = 1, #agents do
  move(pool .. ':parked:' .. agents[i], back_ms)
  --@rows entries: entry fields
  local entries = redis.call('XRANGE', pool .. ':inbox:' .. agents[i], '-', '+')
  for j = 1, #entries do
    -- A requeued task returns to the score in its record.
    local id = entries[j].fields[2]
    local task_key = pool .. ':task:' .. id
    local where, score = string.match(redis.call('HGET', task_key, 'at') or '', '^(%S+ %S+) (%S+)$')
    if where then redis.call('HSET', task_key, 'at', where .. ' ' .. string.format('%.0f', score - by_ms)) end
    move_start_by(id)
  end
end
local limits = redis.call('HKEYS', pool .. ':limits')
for i = 1, #limits do
  local limit_key = pool .. ':limit:' .. limits[i]
  local starts = move(limit_key, back_us)
  -- The time of a returned grant is the name of a member that stays at infinity.
  local returned = string.match(starts[#starts] or '', '^%d+$')
  if returned and by_ms ~= 0 then
    redis.call('ZADD', limit_key, '+inf', string.format('%.0f', returned - by_ms * 1000))
    redis.call('ZREM', limit_key, returned)
  end
end
local schedules = move(pool .. ':schedules', back_ms)
for i = 1, #schedules do
  -- The fire times of an interval move with it; those of a calendar after the next one do not.
  local schedule_key = pool .. ':schedule:' .. schedules[i]
  for _, field in ipairs({'next', 'anchor'}) do
    local ms = redis.call('HGET', schedule_key, field)
    if ms and ms ~= 'inf' then redis.call('HSET', schedule_key, field, string.format('%.0f', ms - by_ms)) end
  end
end
-- The promoter, the scheduler and the assigner sleep until times that have moved.
redis.call('XADD', pool .. ':doorbell', 'MAXLEN', '~', 1000, '*', 'w', 'scheduled')
redis.call('XADD', pool .. ':doorbell', 'MAXLEN', '~', 1000, '*', 'w', 'agents')
redis.call('XADD', pool .. ':doorbell', 'MAXLEN', '~', 1000, '*', 'w', 'schedules')
return 'ok'
