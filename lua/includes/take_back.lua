-- Judge one entry that is taken from a worker. Answers the task's fields when it is to go on, else nil: then it has been
-- ended here, or the entry was of no task; either way the caller removes the entry.
--@include lifetime
--@include bury
--@include end_task
local function take_back(pool, ending, entry, id, counts_death, max_deaths, dead_ttl_s, evidence)
  local task_key = pool .. ':task:' .. id
  local found = redis.call('HMGET', task_key, 'state', 'gen', 'at', 'queue', 'rank', 'ttl', 'reply', 'idem', 'fails',
    'deaths', 'by', 'cancel', 'env', 'skill')
  local held_agent, held_entry, score
  if found[3] then held_agent, held_entry, score = string.match(found[3], '^(%S+) (%S+) (%S+)$') end
  if found[1] ~= 'assigned' or held_entry ~= entry then return nil end
  local deaths = tonumber(found[10] or 0)
  local task = {gen = found[2], queue = found[4], score = score, reply = found[7], idem = found[8],
    fails = tonumber(found[9] or 0), env = found[13]}
  if counts_death then
    deaths = deaths + 1
    redis.call('HSET', task_key, 'deaths', deaths, 'death:' .. deaths, evidence)
  end
  task.deaths = deaths
  if found[12] then
    end_task(pool, ending, id, task, 'cancelled', lifetime(found[6]), {'reason', found[12]})
    return nil
  end
  local skill = found[14] or string.match(found[4], '^skill:(.*)$')
  if counts_death and deaths >= (max_deaths[skill] or 3) then
    end_task(pool, ending, id, task, 'dead', lifetime(found[6], dead_ttl_s), {'reason', 'deaths'})
    bury(pool, id, math.floor(ending.now / 1000), dead_ttl_s)
    return nil
  end
  return task
end
