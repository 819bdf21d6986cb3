#!lua flags=allow-oom
-- Books what a call of an attempt has used, in all its budgets, and frees what it had taken. Also more than that is booked.
-- status: settled | already | unknown (no such call was granted) | stale (the attempt has ended: its end has booked the call) |
-- none (the task has no budget)
-- returns: status, then per budget: name limit spent held soft at_hard per
-- repeat: returns already, changes nothing
local pool       = KEYS[1]            -- key: root of the pool's slot
local id         = ARGV[1]            -- str: task
local generation = ARGV[2]            -- str: generation of the attempt
local number     = tonumber(ARGV[3])  -- int: number of the call within the attempt
local amounts    = ARGV[4]            -- str: four amounts, in millionths; empty: it is unknown whether the call was made
local now_arg    = ARGV[5]            -- time: test override, microseconds
--@include time: now_us
--@include record: read_task
--@include budget: start_budgets, whole_amounts, list_budgets, read_budget, read_hold, parse_hold, format_hold, close_number, add_held, add_spent, store_hold, flush_budgets, show_budgets
--@rare: notify_supervisor

local task = read_task(pool .. ':task:' .. id, 'state', 'gen', 'budget', 'funds')
if task.gen ~= generation or task.state ~= 'assigned' then return {'stale', {}} end
local known = start_budgets(now_us(now_arg))
local names = list_budgets(known, task.budget, task.funds)
if #names == 0 then return {'none', {}} end
local used, member = amounts ~= '' and whole_amounts(amounts), id .. ':' .. generation

local status = 'unknown'
for i = 1, #names do
  local budget = read_budget(pool, known, names[i])
  local hold = parse_hold(read_hold(pool, budget, member))
  local taken = hold.open[number]
  if taken then
    add_held(budget, taken, -1)
    if used then
      add_spent(budget, used)
    elseif budget.lost ~= 'free' then
      add_spent(budget, taken)
    end
    close_number(hold, number)
    store_hold(budget, member, format_hold(hold))
    status = 'settled'
  elseif status == 'unknown' and number > 0 and (number <= hold.base or hold.done[number]) then
    status = 'already'
  end
end
flush_budgets(pool, known)
return {status, show_budgets(known, names)}
