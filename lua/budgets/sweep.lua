#!lua flags=allow-oom
-- Keeps a budget in order: begins a new day, books what attempts hold that do not run, and moves tasks that wait for room to
-- their queues, at their old places, if they fit. Tasks that do not fit stay. Once agents reserve other amounts, or name
-- other budgets, all of them move, also of a budget that is not set: `assign` finds what each needs now.
-- returns: left (1: call again), holds that it booked, tasks that it moved, where the next look at the waiting tasks begins
-- (-1: it has seen all, and the next call looks at none), where that at the holds goes on (empty: it has seen all), with `anew` score
-- and id of the last waiting task that it looked at, what the budget holds with the tasks that moved
-- repeat: goes on
local pool    = KEYS[1]            -- key: root of the pool's slot
local name    = ARGV[1]            -- str: budget
local first   = tonumber(ARGV[2])  -- int: place among the waiting tasks where the look begins; -1: it looks at none
local limit   = tonumber(ARGV[3])  -- int: waiting tasks, and about as many holds, that it looks at
local anew    = ARGV[4]            -- str: 1 = all of them move
local behind  = ARGV[5]            -- str: with `anew`, score and id of the last task that moved; empty: begins at the first
local cursor  = ARGV[6]            -- str: where the look at the holds begins, 0 = at the first; empty: it looks at none
local taken   = ARGV[7]            -- str: four amounts, what the budget held with the tasks that earlier calls have moved; empty at first
local now_arg = ARGV[8]            -- time: test override, microseconds
--@include time: now_us
--@include key: has_type
--@include envelope: skill_queue
--@include record: read_task
--@include budget: nothing, most_amount, waiting_key, start_budgets, read_budget, whole_amounts, format_amounts, lacks, check_holds, book_lost, flush_budgets
--@include version: unlist_scope
--@include queue: put_ready, enqueue
--@include share: ready_place

local known = start_budgets(now_us(now_arg))
local budget = read_budget(pool, known, name)
check_holds(pool, known, budget)
local held_key, scope = waiting_key(pool, name), 'budget:' .. name

-- Unlists the budget if no task waits for it: the last one may have moved, or ended.
local function unlist_empty()
  if redis.call('EXISTS', held_key) == 0 then unlist_scope(pool, scope) end
end

if budget.closed and anew ~= '1' then
  unlist_empty()
  return {0, 0, 0, -1, '', '', ''}
end
-- What the moved tasks need counts as taken, so that no more of them move than fit: `assign` takes it, maybe between two calls.
local asked = {closed = budget.closed, limit = budget.limit, spent = budget.spent, held = whole_amounts(taken)}
local booked, next_cursor = 0, ''
if cursor ~= '' and not budget.closed then
  local before = {unpack(budget.held)}
  next_cursor, booked = book_lost(pool, known, budget, cursor, limit)
  if next_cursor == '0' then next_cursor = '' end
  for i = 1, 4 do asked.held[i] = asked.held[i] - before[i] + budget.held[i] end
end
for i = 1, budget.closed and 0 or 4 do asked.held[i] = math.max(asked.held[i], budget.held[i]) end

-- Returns the place of the first waiting task behind one that has moved. It may be back, at its old place, because `assign` found no
-- room for what it needs now: it must not move again.
local function place_behind(score, id)
  local low = redis.call('ZCOUNT', held_key, '-inf', '(' .. score)
  local high = low + redis.call('ZCOUNT', held_key, score, score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if redis.call('ZRANGE', held_key, middle, middle)[1] <= id then low = middle + 1 else high = middle end
  end
  return low
end

local waiting = {}
if first >= 0 and has_type(known.types, held_key, 'zset') then
  local score, id = string.match(behind, '^(%S+) (.*)$')
  if score then first = place_behind(score, id) end
  waiting = redis.call('ZRANGE', held_key, first, first + limit - 1, 'WITHSCORES')
end
local ready, gone = {}, {}
for i = 1, #waiting, 2 do
  local id = waiting[i]
  local task_key = pool .. ':task:' .. id
  if not has_type(known.types, task_key, 'hash') then task_key = pool .. ':task:' end
  local task = read_task(task_key, 'state', 'queue', 'env', 'fair', 'rank', 'need')
  local need = whole_amounts(string.match(task.need or '', ' (.*)$'))
  if task.state ~= 'ready' then
    gone[#gone + 1] = id
  elseif anew == '1' or not lacks(asked, need, nothing, true) then
    for j = 1, 4 do asked.held[j] = math.min(most_amount, asked.held[j] + need[j]) end
    gone[#gone + 1] = id
    enqueue(ready, ready_place(task.queue or skill_queue(task.env), task.fair, task.rank), waiting[i + 1], id)
    redis.call('HDEL', task_key, 'need')
  end
end
flush_budgets(pool, known)
local moved = 0
for place, scored in pairs(ready) do
  put_ready(pool, place, scored)
  moved = moved + #scored / 2
end
if #gone > 0 then redis.call('ZREM', held_key, unpack(gone)) end
unlist_empty()
local looked_at_all = #waiting < 2 * limit
-- Nothing can start while a unit is used up.
local goes_on = not looked_at_all and (anew == '1' or not lacks(asked, nothing, nothing, true))
local left = (next_cursor ~= '' or goes_on) and 1 or 0
local last = goes_on and anew == '1' and waiting[#waiting] .. ' ' .. waiting[#waiting - 1] or ''
return {left, booked, moved, goes_on and first + limit - #gone or -1, next_cursor, last, format_amounts(asked.held)}
