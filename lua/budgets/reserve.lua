#!lua flags=allow-oom
-- Takes amounts from all budgets of an attempt before a call, or from none. What the start of the attempt holds is used first.
-- A hand-back turn may take 5 % of each limit beyond it, once per task. A full server accepts it, because the attempt runs.
-- status: granted | refused budget reason (room | overspent | above | last | used | undefined | damaged; nothing changed) |
-- settled (this number was settled before) | full (the attempt has `most` open calls) | none (the task has no budget) |
-- stale (the attempt lost its task)
-- returns: status, budget, reason, unfunded (1: a person has refused more), then per budget: name limit spent held soft at_hard per
-- repeat: returns granted, changes nothing
local pool       = KEYS[1]            -- key: root of the pool's slot
local id         = ARGV[1]            -- str: task
local generation = ARGV[2]            -- str: generation of the attempt
local number     = tonumber(ARGV[3])  -- int: number of the call within the attempt, from 1
local amounts    = ARGV[4]            -- str: four amounts, in millionths
local last       = ARGV[5]            -- str: 1 = the hand-back turn
local most       = tonumber(ARGV[6])  -- int: open calls of an attempt
local now_arg    = ARGV[7]            -- time: test override, microseconds
--@include time: now_us
--@include record: read_task
--@include budget: start_budgets, whole_amounts, list_budgets, read_budget, read_hold, lacks, lacks_last, parse_hold, format_hold, add_held, store_hold, flush_budgets, show_budgets
--@rare: lacks_last, notify_supervisor

local task_key = pool .. ':task:' .. id
local task = read_task(task_key, 'state', 'gen', 'budget', 'funds', 'unfunded', 'handed')
if task.state ~= 'assigned' or task.gen ~= generation then return {'stale'} end
local need = whole_amounts(amounts)
local known = start_budgets(now_us(now_arg))
local names = list_budgets(known, task.budget, task.funds)
if #names == 0 then return {'none'} end
local member = id .. ':' .. generation

local function answer(status, budget, reason)
  return {status, budget or '', reason or '', task.unfunded and 1 or 0, show_budgets(known, names)}
end

local holds, drawn, refusing, why = {}, {}, nil, nil
for i = 1, #names do
  local budget = read_budget(pool, known, names[i])
  local hold = parse_hold(read_hold(pool, budget, member))
  if hold.open[number] then return answer('granted') end
  if number <= hold.base or hold.done[number] then return answer('settled') end
  if hold.count >= most then return answer('full') end
  local start, taken = hold.open[0], {0, 0, 0, 0}
  if start then
    for j = 1, 4 do taken[j] = math.min(start[j], need[j]) end
  end
  holds[i], drawn[i] = hold, taken
  local reason
  if last == '1' then
    reason = task.handed and 'used' or lacks_last(budget, need, taken)
  else
    reason = lacks(budget, need, taken)
  end
  if reason and not refusing then refusing, why = names[i], reason end
end
if refusing then return answer('refused', refusing, why) end

for i = 1, #names do
  local budget, hold, taken = known.found[names[i]], holds[i], drawn[i]
  local start, more, left = hold.open[0], {0, 0, 0, 0}, 0
  for j = 1, 4 do
    more[j] = need[j] - taken[j]
    if start then
      start[j] = start[j] - taken[j]
      left = left + start[j]
    end
  end
  if start and left == 0 then hold.open[0] = nil end
  hold.open[number] = need
  add_held(budget, more, 1)
  store_hold(budget, member, format_hold(hold))
end
flush_budgets(pool, known)
if last == '1' then redis.call('HSET', task_key, 'handed', '1') end
return answer('granted')
