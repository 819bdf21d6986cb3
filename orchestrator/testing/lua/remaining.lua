#!lua flags=no-writes
-- Counts the remaining work in one step, so that no task moves from one place to another meanwhile.
-- returns: ready, in inboxes (assigned or running), suspects or due by a schedule, scheduled, asking with a deadline, asking without
--          one, ms until the next is due (-1: none), starts so far
-- repeat: counts again
local pool = KEYS[1]  -- key: root of the pool's slot

local ready, held = 0, 0
local queues = redis.call('SMEMBERS', pool .. ':queues')
for i = 1, #queues do ready = ready + redis.call('ZCARD', pool .. ':queue:' .. queues[i]) end
local suspected = redis.call('SMEMBERS', pool .. ':suspects')
for i = 1, #suspected do held = held + redis.call('ZCARD', pool .. ':suspects:' .. suspected[i]) end
local scopes = redis.call('SMEMBERS', pool .. ':held')
for i = 1, #scopes do ready = ready + redis.call('ZCARD', pool .. ':held:' .. scopes[i]) end
local agents = redis.call('ZRANGE', pool .. ':agents', 0, -1)
for i = 1, #agents do
  ready = ready + redis.call('ZCARD', pool .. ':parked:' .. agents[i])
  held = held + redis.call('XLEN', pool .. ':inbox:' .. agents[i])
end
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
-- A due schedule is about to submit a task.
held = held + redis.call('ZCOUNT', pool .. ':schedules', '-inf', string.format('%.0f', now_ms))
local due_in_ms = -1
for _, key in ipairs({pool .. ':scheduled', pool .. ':asking', pool .. ':joining', pool .. ':expiring'}) do
  local head = redis.call('ZRANGE', key, '-inf', '(+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  if head[2] then
    local ms = math.max(0, tonumber(head[2]) - now_ms)
    if due_in_ms < 0 or ms < due_in_ms then due_in_ms = ms end
  end
end
local starts = tonumber(redis.call('HGET', pool .. ':stats:TOTAL', 'assigned') or 0)
local asking_key = pool .. ':asking'
local in_time = redis.call('ZCOUNT', asking_key, '-inf', '(+inf')
local asking = redis.call('ZCARD', asking_key) - in_time
return {ready, held, redis.call('ZCARD', pool .. ':scheduled'), in_time, asking, due_in_ms, starts}
