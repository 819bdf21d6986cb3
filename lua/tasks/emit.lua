#!lua
-- Appends progress and partial output of running attempts to the output streams of their tasks: up to 500 rows, each
-- judged for itself. A stream keeps about `max_chunks` entries. Progress replaces the progress entry right before it,
-- so that frequent progress does not evict output.
-- kinds: progress (data = [done, total, message]; the record keeps the latest) | output
-- status, per row: ok | stale (the attempt lost its task; nothing was written)
-- repeat: returns ok and skips rows whose `seq` is not above the last one of the attempt
local pool       = KEYS[1]                   -- key: root of the pool's slot
local rows       = cmsgpack.unpack(ARGV[1])  -- rows: id generation attempt seq kind number data
local max_chunks = tonumber(ARGV[2])         -- int: maximum entries of a stream
--@include notify: publish_hint
--@include record: read_task

local answers, tasks, order = {}, {}, {}

local function known(id)
  local task = tasks[id]
  if not task then
    local found = read_task(pool .. ':task:' .. id, 'state', 'gen', 'out')
    task = {running = found.state == 'assigned', gen = found.gen, seq = 0, progress = '-'}
    -- `out` has the generation and the seq of the last row, and its entry if it was progress.
    local gen, seq, progress = string.match(found.out or '', '^(%S+) (%S+) (%S+)$')
    if gen == task.gen then task.seq, task.progress = tonumber(seq), progress end
    tasks[id] = task
    order[#order + 1] = id
  end
  return task
end

local function judge(row)
  local id, generation, seq, kind = row.id, row.generation, row.seq, row.kind
  local task = known(id)
  if not task.running or task.gen ~= generation then return 'stale' end
  if seq <= task.seq then return 'ok' end
  local out_key = pool .. ':out:' .. id
  local entry = redis.call('XADD', out_key, 'MAXLEN', '~', max_chunks, '*',
    'k', kind, 'g', generation, 'a', row.attempt, 'n', row.number, 'd', row.data)
  task.seq, task.entry = seq, entry
  if kind == 'progress' then
    if task.progress ~= '-' then redis.call('XDEL', out_key, task.progress) end
    task.progress, task.latest = entry, row.data
  else
    task.progress = '-'
  end
  return 'ok'
end

for i = 1, #rows do answers[i] = judge(rows[i]) end
for i = 1, #order do
  local id = order[i]
  local task = tasks[id]
  if task.entry then
    local task_key, out_key = pool .. ':task:' .. id, pool .. ':out:' .. id
    redis.call('HSET', task_key, 'out', task.gen .. ' ' .. task.seq .. ' ' .. task.progress)
    if task.latest then redis.call('HSET', task_key, 'progress', task.gen .. ' ' .. task.latest) end
    if redis.call('TTL', out_key) < 0 then
      redis.call('EXPIRE', out_key, math.max(1, redis.call('TTL', task_key)))
    end
    publish_hint(out_key, task.entry)
  end
end
return answers
