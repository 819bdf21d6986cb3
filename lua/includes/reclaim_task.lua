-- Judge one entry that is taken from a worker. Answers the task's fields when it is to go on, else nil: then it has been
-- ended here, or the entry was of no task; either way the caller removes the entry (protocol rule 8). `died` of the answer
-- tells whether it was a death, `recent` how many there were since it was requeued, `forgiven_failures` how many failures before.
--@include lifetime
--@include index_dead
--@include end_task
--@include keep_alive
--@include append_event
--@include skill_queue
--@include forgiven_failures
local function reclaim_task(pool, ending, agent, entry, id, died, max_deaths, dead_ttl_s, evidence)
  local task_key = pool .. ':task:' .. id
  local found = redis.call('HMGET', task_key, 'state', 'gen', 'at', 'queue', 'ttl', 'idem', 'fails', 'deaths', 'by',
    'cancel', 'env', 'skill', 'out', 'begun', 'requeued', 'lane')
  local held_agent, held_entry, score
  if found[3] then held_agent, held_entry, score = string.match(found[3], '^(%S+) (%S+) (%S+)$') end
  if found[1] ~= 'assigned' or held_agent ~= agent or held_entry ~= entry then return nil end
  -- With a death behind it, it says when it begins. Before that it only waited beside whatever killed its worker.
  if died and found[8] and found[14] ~= found[2] then died = false end
  local task = {gen = found[2], queue = found[4] or skill_queue(found[11]), score = score, idem = found[6],
    fails = tonumber(found[7] or 0), deaths = tonumber(found[8] or 0), by = found[9], env = found[11], skill = found[12], out = found[13],
    died = died, lane = found[16]}
  local fails_forgiven, deaths_forgiven = forgiven_failures(found[15])
  if died then
    task.deaths = task.deaths + 1
    redis.call('HSET', task_key, 'deaths', task.deaths, 'death:' .. task.deaths, evidence)
  end
  task.forgiven, task.recent = fails_forgiven, task.deaths - deaths_forgiven
  local now_ms = math.floor(ending.now / 1000)
  local skill = found[12] or string.match(task.queue, '^skill:(.*)$')
  if found[10] then
    end_task(pool, ending, id, task, 'cancelled', lifetime(found[5]), {'reason', found[10]})
  elseif died and task.recent >= (max_deaths[skill] or 3) then
    end_task(pool, ending, id, task, 'dead', lifetime(found[5], dead_ttl_s), {'reason', 'deaths'})
    index_dead(pool, id, now_ms, dead_ttl_s)
  elseif task.by and tonumber(task.by) <= now_ms then
    end_task(pool, ending, id, task, 'expired', lifetime(found[5]), {'reason', 'did not start in time'})
  else
    keep_alive(pool, id, task.idem, task.out)
    if died and task.out then
      append_event(pool, id, task.gen, task.fails + task.deaths, 'taken_back', string.match(evidence, '^%S+ (.*)$'))
    end
    return task
  end
  return nil
end
