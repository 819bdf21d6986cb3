#!lua flags=allow-oom
-- Requeues entries that Redis counts as read by a worker that lives and has not seen them: its event loop is blocked, or
-- a reply was lost. Counts no death, because these tasks did not begin.
-- returns: the removed entries
-- repeat: finds only entries that are old enough since
local pool    = KEYS[1]                   -- key: root of the pool's slot
local worker  = ARGV[1]                   -- str: consumer
local agent   = ARGV[2]                   -- str: agent
local held    = cmsgpack.unpack(ARGV[3])  -- rows: entry
local idle_ms = tonumber(ARGV[4])         -- int: entries that were read or renewed at least this long ago
local limit   = tonumber(ARGV[5])         -- int: at most this many (500)
local now_arg = ARGV[6]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include record: next_generation
--@include queue: start_waiting, flush_waiting
--@include limit: return_slots
--@include inbox: task_of_entry, remove_entries
--@include ending: start_endings, flush_endings
--@include reclaim: reclaim_task, requeue_task

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local inbox_key = pool .. ':inbox:' .. agent
if redis.call('EXISTS', inbox_key) == 0 then return {} end
local holds, leave = {}, {}
for i = 1, #held do holds[held[i].entry] = true end
--@rows pending: entry
local pending = redis.call('XPENDING', inbox_key, 'workers', 'IDLE', idle_ms, '-', '+', limit + #held, worker)
local ending, waiting = start_endings(now), start_waiting()
local returned = 0
for i = 1, #pending do
  local entry = pending[i].entry
  if not holds[entry] and #leave < limit then
    leave[#leave + 1] = entry
    local id = task_of_entry(inbox_key, entry)
    local task = id ~= '' and reclaim_task(pool, ending, agent, entry, id, nil, false, {}, 0, '')
    if task then
      return_slots(pool, agent, id, task.gen)
      requeue_task(pool, waiting, id, task, integer(next_generation(task.gen, now_ms)), now, 'its worker did not see it')
      returned = returned + 1
    end
  end
end
flush_waiting(pool, waiting)
if #leave > 0 then remove_entries(pool, agent, leave) end
if returned > 0 then ending.counts.given_back = returned end
flush_endings(pool, ending)
return leave
