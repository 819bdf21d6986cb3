#!lua flags=allow-oom
-- Requeues the tasks of a dead worker at the head of their queues and counts one death each.
-- returns: number of removed entries,
--          dead (a list: id skill attempt deaths of each task that is a dead letter now),
--          then per requeued task: id, generation that died
-- repeat: finds only entries that the dead worker's last read delivered since
local pool       = KEYS[1]                   -- key: root of the pool's slot
local worker     = ARGV[1]                   -- str: consumer that died
local agent      = ARGV[2]                   -- str: agent
local limit      = tonumber(ARGV[3])         -- int: at most this many entries (500)
local max_deaths = cmsgpack.unpack(ARGV[4])  -- rows: skill deaths
local reason     = ARGV[5]                   -- str: how the worker died, kept as evidence
local dead_ttl_s = tonumber(ARGV[6])         -- int: minimum lifetime of dead letters
local now_arg    = ARGV[7]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include record: next_generation
--@include queue: start_waiting, flush_waiting
--@include limit: return_slots
--@include inbox: task_of_entry, remove_entries
--@include ending: start_endings, flush_endings
--@include reclaim: co_running, count_crew, reclaim_task, requeue_task

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local inbox_key = pool .. ':inbox:' .. agent
if redis.call('EXISTS', inbox_key) == 0 then return {0, {}} end
local ending = start_endings(now)
local deaths_allowed = {}
for i = 1, #max_deaths do deaths_allowed[max_deaths[i].skill] = max_deaths[i].deaths end

local waiting = start_waiting()
local answers, leave, ids = {0, {}}, {}, {}
--@rows pending: entry
local pending = redis.call('XPENDING', inbox_key, 'workers', '-', '+', limit, worker)
for i = 1, #pending do
  local entry = pending[i].entry
  leave[i] = entry
  ids[i] = task_of_entry(inbox_key, entry)
end
local crew = count_crew(pool, agent, worker, now_ms)
for i = 1, #pending do
  local entry, id = pending[i].entry, ids[i]
  if id ~= '' then
    local evidence = integer(now_ms) .. ' ' .. worker .. ' ' .. reason .. co_running(ids, nil, i)
    local task = reclaim_task(pool, ending, agent, entry, id, crew, true, deaths_allowed, dead_ttl_s, evidence)
    if task then
      if not task.died then return_slots(pool, agent, id, task.gen) end
      requeue_task(pool, waiting, id, task, integer(next_generation(task.gen, now_ms)), now, 'its worker died before it began')
      answers[#answers + 1] = id
      answers[#answers + 1] = task.gen
    end
  end
end
flush_waiting(pool, waiting)
if #leave > 0 then remove_entries(pool, agent, leave) end
answers[1] = #leave
if ending.dead then answers[2] = ending.dead end
if #leave > 0 then ending.counts.abandoned = #leave end
flush_endings(pool, ending)
return answers
