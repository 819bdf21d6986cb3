#!lua
-- Accept tasks: up to 500 in one call, each judged for itself.
-- status, per row: created ready_or_due_ms | duplicate id | conflict id | full queue | stale parent
-- repeat: a row whose task exists answers duplicate with its own id and changes nothing
local pool        = KEYS[1]                   -- key: root of the pool's slot
local rows        = cmsgpack.unpack(ARGV[1])  -- rows: id queue rank delay_ms at_ms start_by_ms ttl_s reply idem digest envelope parent parent_generation skill
local max_tasks   = tonumber(ARGV[2])         -- int: cap of one queue
local max_wait_s  = tonumber(ARGV[3])         -- int: a task that nobody runs is kept this long
local now_arg     = ARGV[4]                   -- time: test override, microseconds
--@include now_us
--@include whole
--@include line_up
--@include lifetime
--@include rank_of
--@include skill_queue
--@include put_ready
--@include put_due
--@include tally

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local answers, accepted = {}, {}
local lengths, seen_ids, seen_keys = {}, {}, {}

local task_keys = {}
for i = 1, #rows do task_keys[i] = pool .. ':task:' .. rows[i][1] end
local any_known = redis.call('EXISTS', unpack(task_keys)) > 0

local function length_of(queue)
  if not lengths[queue] then
    local key = pool .. ':queue:' .. queue
    if queue == 'scheduled' then key = pool .. ':scheduled' end
    lengths[queue] = redis.call('ZCARD', key)
    local agent = string.match(queue, '^agent:(.*)$')
    if agent then lengths[queue] = lengths[queue] + redis.call('ZCARD', pool .. ':parked:' .. agent) end
  end
  return lengths[queue]
end

local function judge(i, row)
  local id, idem, digest = row[1], row[9], row[10]
  if seen_ids[id] or (any_known and redis.call('EXISTS', task_keys[i]) == 1) then return 'duplicate', id end
  if idem ~= '' then
    local holder = seen_keys[idem] or redis.call('GET', pool .. ':idem:' .. idem)
    if holder then
      local owner, known = string.match(holder, '^(%S+) (.*)$')
      if known == digest then return 'duplicate', owner end
      return 'conflict', owner
    end
  end
  if row[12] ~= '' then
    local parent = redis.call('HMGET', pool .. ':task:' .. row[12], 'state', 'gen')
    if parent[1] ~= 'assigned' or parent[2] ~= row[13] then return 'stale', row[12] end
  end
  local due = 0
  if row[4] > 0 then due = now_ms + row[4] end
  if row[5] > due then due = row[5] end
  local waits_in = row[2]
  if due > now_ms then waits_in = 'scheduled' else due = 0 end
  local length = length_of(waits_in)
  if length >= max_tasks then return 'full', waits_in end
  lengths[waits_in] = length + 1
  seen_ids[id] = true
  if idem ~= '' then seen_keys[idem] = id .. ' ' .. digest end
  accepted[#accepted + 1] = {row, due, task_keys[i]}
  return 'created', whole(due > 0 and due or now_ms)
end

for i = 1, #rows do
  answers[2 * i - 1], answers[2 * i] = judge(i, rows[i])
end

local ready, scheduled, expiring = {}, {}, {}
local born = whole(now_ms)
for i = 1, #accepted do
  local row, due, task_key = accepted[i][1], accepted[i][2], accepted[i][3]
  local fields = {'env', row[11], 'gen', born}
  local n = #fields
  local function field(name, value)
    fields[n + 1], fields[n + 2] = name, value
    n = n + 2
  end
  -- What most tasks have in common is not stored: it would be a third of a small record.
  if row[2] ~= skill_queue(row[11]) then field('queue', row[2]) end
  if row[3] ~= rank_of(nil) then field('rank', whole(row[3])) end
  if row[7] ~= lifetime(nil) then field('ttl', row[7]) end
  local keep_s = max_wait_s
  if due > 0 then
    field('state', 'scheduled')
    keep_s = max_wait_s + math.ceil((due - now_ms) / 1000)
    scheduled[#scheduled + 1] = whole(due)
    scheduled[#scheduled + 1] = row[1]
  else
    field('state', 'ready')
    line_up(ready, row[2], whole(row[3] + now_ms), row[1])
  end
  if row[6] > 0 then
    field('by', whole(row[6]))
    expiring[#expiring + 1] = whole(row[6])
    expiring[#expiring + 1] = row[1]
  end
  if row[8] ~= '' then field('reply', row[8]) end
  if row[9] ~= '' then
    field('idem', row[9])
    redis.call('SET', pool .. ':idem:' .. row[9], row[1] .. ' ' .. row[10], 'EX', keep_s)
  end
  if row[14] ~= '' then field('skill', row[14]) end
  redis.call('HSET', task_key, unpack(fields))
  redis.call('EXPIRE', task_key, keep_s)
end
for queue, scored in pairs(ready) do put_ready(pool, queue, scored) end
if #scheduled > 0 then put_due(pool, 'scheduled', scheduled) end
if #expiring > 0 then put_due(pool, 'expiring', expiring) end
if #accepted > 0 then tally(pool, now, {submitted = #accepted}) end
return answers
