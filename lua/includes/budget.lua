-- Budgets: limits of what tasks spend, in four units, which are counted in millionths (protocol rule 38).
-- `budget:B` has limit, spent and held. `holds:B` has what each attempt holds.
--@include time: integer
--@include key: has_type
--@include notify: notify_supervisor
--@include record: read_task

-- The units, in the order of all amounts.
local unit_names = {'usd','tokens','calls','seconds'}

-- Nothing of each unit.
local nothing = {0,0,0,0}

-- The largest amount.
local most_amount = 9007199254740991

-- Returns the key of the tasks that wait for a budget.
local function waiting_key(pool, name)
  return pool .. ':held:' .. 'budget:' .. name
end

-- Returns a collector for the budgets that one call reads and changes; `flush_budgets` stores it.
local function start_budgets(now)
  return {now = now, types = {}, found = {}, lists = {}}
end

-- Returns four amounts of a text; false for one that is `-`, and nil for a text that is none of four amounts.
local function parse_amounts(text)
  -- Few have an amount that is `-`.
  local usd, tokens, calls, seconds = string.match(text or '', '^(%d+) (%d+) (%d+) (%d+)$')
  if usd and #usd <= 16 and #tokens <= 16 and #calls <= 16 and #seconds <= 16 then return {tonumber(usd), tonumber(tokens), tonumber(calls), tonumber(seconds)} end
  usd, tokens, calls, seconds = string.match(text or '', '^(%S+) (%S+) (%S+) (%S+)$')
  local amounts = {usd, tokens, calls, seconds}
  for i = 1, 4 do
    local word = amounts[i]
    if word == '-' then
      amounts[i] = false
    elseif not word or #word > 16 or string.find(word, '%D') then
      return nil
    else
      amounts[i] = tonumber(word)
    end
  end
  return amounts
end

-- Returns four amounts of a text that has no limits: each is a number.
local function whole_amounts(text)
  local amounts = parse_amounts(text) or {}
  for i = 1, 4 do amounts[i] = amounts[i] or 0 end
  return amounts
end

-- Returns amounts as text. `%d` is exact for them, and takes half as long as `%.0f`.
local function format_amounts(amounts)
  local usd, tokens, calls, seconds = amounts[1], amounts[2], amounts[3], amounts[4]
  if usd and tokens and calls and seconds then return string.format('%d %d %d %d', usd, tokens, calls, seconds) end
  local words = {}
  for i = 1, 4 do words[i] = amounts[i] and integer(amounts[i]) or '-' end
  return table.concat(words, ' ')
end

-- Returns the budgets of an attempt: those of its task, and those that its agent names (`funds`).
local function list_budgets(known, budget, funds)
  local text = budget
  if funds then text = (budget or '') .. ' ' .. funds end
  if not text then return {} end
  local names = known.lists[text]
  if not names then
    local seen = {}
    names = {}
    for name in string.gmatch(text, '%S+') do
      if not seen[name] then
        seen[name] = true
        names[#names + 1] = name
      end
    end
    known.lists[text] = names
  end
  return names
end

-- Returns whether `funds` of an agent names budgets: a line with a sixth word does.
local function names_budgets(funds)
  return string.find(funds, '%f[^\n%z]%S+ %S+ %S+ %S+ %S+ %S') ~= nil
end

-- Ends a run of starts that take the same of the same budgets: adds what they take to what the budgets hold.
local function end_run(known)
  local run = known.run
  known.run = nil
  local taken = #run.holds / 2
  if taken == 0 then return end
  for i = 1, #run.budgets do
    local budget = run.budgets[i]
    local held = budget.held
    for j = 1, 4 do held[j] = math.min(most_amount, held[j] + taken * run.need[j]) end
    budget.changed, budget.held_text = true, nil
    budget.starts = budget.starts or {}
    budget.starts[#budget.starts + 1] = run.holds
  end
end

-- Turns a budget by day to the account of a day. `other` of its record has up to two accounts of other days, with a `;` between them:
-- of the day that the clock has just left, and the latest of the others, so that one of a later day stays until the clock has come there.
-- A clock that comes to one of these days goes on with its account, so that a step of the clock opens no day twice. An earlier day that
-- is not known goes on with what is spent, and the day after it begins anew.
local function turn_day(budget, stored_day, other, day)
  local before = tonumber(stored_day)
  budget.day = before
  if before == day then return end
  local known, kept_day, kept = nil, -1, nil
  for account in string.gmatch(other or '', '[^;]+') do
    local its_day, amounts = string.match(account, '^(%d+) (.*)$')
    its_day = tonumber(its_day or -1)
    if its_day == day then
      known = whole_amounts(amounts)
    elseif its_day > kept_day and its_day ~= before then
      kept_day, kept = its_day, account
    end
  end
  if before then budget.other = integer(before) .. ' ' .. format_amounts(budget.spent) .. (kept and ';' .. kept or '') end
  if known then
    budget.spent = known
  elseif not before or day > before then
    budget.spent = {0, 0, 0, 0}
  end
  budget.spent_text, budget.day, budget.turned, budget.changed = nil, day, true, true
end

-- Returns a budget as the call has read and changed it. `closed` says why nothing may be taken from it: `undefined`, or
-- `damaged` for keys of another type and values that no program stores. A new day of a budget by day begins with nothing
-- spent, after any number of days; what attempts hold stays held.
local function read_budget(pool, known, name)
  -- The caller may change what it holds.
  if known.run then end_run(known) end
  local budget = known.found[name]
  if budget then return budget end
  budget = {name = name}
  known.found[name] = budget
  --@row stored: limit spent held per day lost soft at_hard other
  local stored = redis.pcall('HMGET', pool .. ':budget:' .. name, 'limit', 'spent', 'held', 'per', 'day', 'lost', 'soft', 'at_hard', 'other')
  if not stored.limit then
    budget.closed = rawget(stored, 'err') and 'damaged' or 'undefined'
    return budget
  end
  local limit, spent, held = parse_amounts(stored.limit), parse_amounts(stored.spent), parse_amounts(stored.held)
  budget.limit, budget.spent, budget.held = limit, spent, held
  budget.limit_text, budget.spent_text, budget.held_text = stored.limit, stored.spent, stored.held
  budget.lost, budget.soft, budget.at_hard, budget.per = stored.lost, stored.soft, stored.at_hard, stored.per
  if not (limit and spent and spent[1] and spent[2] and spent[3] and spent[4]
    and held and held[1] and held[2] and held[3] and held[4]) then
    budget.closed = 'damaged'
    return budget
  end
  if stored.per == 'day' then turn_day(budget, stored.day, stored.other, math.floor(known.now / 86400000000)) end
  return budget
end

-- Closes a budget whose holds are a key of another type.
local function check_holds(pool, known, budget)
  if not has_type(known.types, pool .. ':holds:' .. budget.name, 'hash') then budget.closed = 'damaged' end
end

-- Returns what an attempt holds of a budget as text; nil for nothing, also of a closed budget.
local function read_hold(pool, budget, member)
  if budget.closed then return nil end
  local text = redis.pcall('HGET', pool .. ':holds:' .. budget.name, member)
  if type(text) == 'table' then
    budget.closed = 'damaged'
    return nil
  end
  return text or nil
end

-- Returns why a budget has no room for amounts, nil if it has: the reason of `closed`, `overspent` (more is spent and held
-- than the limit), `above` (they exceed the limit), or `room`. `drawn` of them is held already. Without an amount of a unit some
-- of it must be left, if `starts`.
local function lacks(budget, need, drawn, starts)
  if budget.closed then return budget.closed end
  local limit, spent, held, reason = budget.limit, budget.spent, budget.held, nil
  for i = 1, 4 do
    local most = limit[i]
    if most then
      local used = spent[i] + held[i]
      if need[i] > most then return 'above' end
      if used > most then
        reason = 'overspent'
      elseif used + need[i] - drawn[i] > most or (starts and need[i] == 0 and used >= most) then
        reason = reason or 'room'
      end
    end
  end
  return reason
end

-- Returns whether a hand-back turn may take amounts: 5 % of each limit, beyond the limit.
local function lacks_last(budget, need, drawn)
  if budget.closed then return budget.closed end
  for i = 1, 4 do
    local most = budget.limit[i]
    if most and need[i] > 0 then
      local twentieth = math.floor(most / 20)
      if need[i] > twentieth or budget.spent[i] + budget.held[i] + need[i] - drawn[i] > most + twentieth then return 'last' end
    end
  end
  return nil
end

-- Reads what an attempt holds of a budget: `open` has amounts by number, 0 for those of its start; all numbers up to `base`,
-- and those in `done`, are settled. `count` says how many calls are open.
local function parse_hold(text)
  local hold = {base = 0, open = {}, done = {}, count = 0}
  if not text then return hold end
  hold.base = tonumber(string.match(text, '^%d+')) or 0
  for number, amounts in string.gmatch(text, ';(%d+)([^;]*)') do
    if amounts == '' then
      hold.done[tonumber(number)] = true
    else
      hold.open[tonumber(number)] = whole_amounts(string.sub(amounts, 2))
      if number ~= '0' then hold.count = hold.count + 1 end
    end
  end
  return hold
end

-- Returns what an attempt holds as text.
local function format_hold(hold)
  local parts = {integer(hold.base)}
  for number, amounts in pairs(hold.open) do parts[#parts + 1] = integer(number) .. ' ' .. format_amounts(amounts) end
  for number in pairs(hold.done) do parts[#parts + 1] = integer(number) end
  return table.concat(parts, ';')
end

-- How many numbers below a settled one may be still to come.
local most_late = 500

-- Notes that a number of an attempt is settled. A refused call leaves its number unsettled, and an open one may keep `base` back: so that
-- the list of settled numbers stays short, all that are `most_late` below this one count as settled, unless they are open.
local function close_number(hold, number)
  hold.open[number] = nil
  if number > hold.base then hold.done[number] = true end
  if number - most_late > hold.base then
    hold.base = number - most_late
    for settled in pairs(hold.done) do
      if settled <= hold.base then hold.done[settled] = nil end
    end
  end
  while hold.done[hold.base + 1] do
    hold.base = hold.base + 1
    hold.done[hold.base] = nil
  end
end

-- Adds amounts to what a budget holds; `by` is 1 or -1.
local function add_held(budget, amounts, by)
  local held = budget.held
  for i = 1, 4 do held[i] = math.min(most_amount, math.max(0, held[i] + by * amounts[i])) end
  budget.changed, budget.held_text = true, nil
  if by < 0 then budget.freed = true end
end

-- Adds amounts to what was spent of a budget.
local function add_spent(budget, amounts)
  local spent = budget.spent
  for i = 1, 4 do spent[i] = math.min(most_amount, spent[i] + amounts[i]) end
  budget.changed, budget.spent_text = true, nil
end

-- Collects the hold of an attempt for `flush_budgets`; without text the attempt holds nothing more.
local function store_hold(budget, member, text)
  local set, gone = budget.set, budget.gone
  if not set then
    set, gone = {}, {}
    budget.set, budget.gone = set, gone
  end
  if not text then
    gone[#gone + 1] = member
    return
  end
  local n = #set
  set[n + 1], set[n + 2] = member, text
end

-- Begins a run of starts that take the same of the same budgets, so that each of them only counts: `left` of them fit. With none, the
-- first budget without room is `refusing`, and `reason` says why.
local function start_run(pool, known, names, need)
  -- A task without a budget reads none, so that nothing below ends the run before.
  if known.run then end_run(known) end
  local budgets, left = {}, math.huge
  for i = 1, #names do
    local budget = read_budget(pool, known, names[i])
    if need ~= nothing then check_holds(pool, known, budget) end
    local reason = lacks(budget, need, nothing, true)
    if reason then
      known.run = {names = names, need = need, left = 0, refusing = names[i], reason = reason, holds = {}}
      return known.run
    end
    for j = 1, 4 do
      local most = need[j] > 0 and budget.limit[j]
      if most then left = math.min(left, math.floor((most - budget.spent[j] - budget.held[j]) / need[j])) end
    end
    budgets[i] = budget
  end
  need.text = need.text or '0;0 ' .. format_amounts(need)
  known.run = {names = names, need = need, left = left, budgets = budgets, holds = {}}
  return known.run
end

-- Takes the amounts of a start from all budgets of an attempt, or from none. Returns the first budget without room, and why;
-- nil if they are taken. Amounts of nothing hold nothing.
local function take_start(pool, known, names, need, id, generation)
  local run = known.run
  if not run or run.names ~= names or run.need ~= need or (run.left == 0 and not run.refusing) then
    run = start_run(pool, known, names, need)
  end
  if run.refusing then return run.refusing, run.reason end
  if need == nothing then return nil end
  run.left = run.left - 1
  local holds = run.holds
  local n = #holds
  holds[n + 1], holds[n + 2] = id .. ':' .. generation, need.text
  return nil
end

-- Returns amounts and budgets that an agent reserves for a skill, or false. Of `funds` a line has a skill, four amounts, and
-- budgets that the agent names. Without a skill the queue ends with it.
local function reserve_of(agent, skill, queue)
  local reserves = agent.reserves
  if not reserves then
    reserves = {}
    for named, amounts, budgets in string.gmatch(agent.funds, '(%S+) (%S+ %S+ %S+ %S+)([^\n]*)') do
      local need, any = whole_amounts(amounts), false
      for i = 1, 4 do any = any or need[i] > 0 end
      reserves[named] = {any and need or nothing, budgets ~= '' and string.sub(budgets, 2) or false}
    end
    agent.reserves = reserves
  end
  local reserve = reserves[skill or queue]
  if reserve == nil then
    reserve = not skill and reserves[string.match(queue, 'skill:(.*)$')] or false
    reserves[skill or queue] = reserve
  end
  return reserve
end

-- Takes what the start of a task reserves from all its budgets. Returns the scope of the first budget without room, or nil:
-- the task may start. `task` has budget, funds, unfunded and skill; without one the queue has it.
local function refusing_budget(pool, ending, agent, id, task, queue, generation)
  local known = ending.budgets
  if not known then
    known = start_budgets(ending.now)
    ending.budgets = known
  end
  local need, funds = nothing, false
  if agent.funds then
    local reserve = reserve_of(agent, task.skill, queue)
    if reserve then need, funds = reserve[1], reserve[2] end
  end
  local names = known.lists[task.budget]
  if funds or not names then names = list_budgets(known, task.budget, funds) end
  local refusing = not task.unfunded and take_start(pool, known, names, need, id, generation)
  if refusing then
    redis.call('HSET', pool .. ':task:' .. id, 'need', refusing .. ' ' .. format_amounts(need))
    return 'budget:' .. refusing
  end
  -- The end of the attempt books what it holds of the budgets of its agent, too.
  if funds and funds ~= task.funds then redis.call('HSET', pool .. ':task:' .. id, 'funds', funds) end
  if task.funds and not funds then redis.call('HDEL', pool .. ':task:' .. id, 'funds') end
  return nil
end

-- Books one hold of an attempt that has ended. A start that spent nothing is free, unless the attempt died. What a call had
-- taken, and the attempt did not settle, is lost, because the call may have been made: the budget says whether that is spent.
local function book_hold(budget, member, text, died)
  local hold, lost = parse_hold(text), budget.lost ~= 'free'
  for number, amounts in pairs(hold.open) do
    if lost and (number > 0 or died) then add_spent(budget, amounts) end
    add_held(budget, amounts, -1)
  end
  store_hold(budget, member, nil)
end

-- Books what an attempt holds of its budgets, because it ends. `ending` keeps the collector.
local function end_spending(pool, ending, id, generation, budget, funds, died)
  local known = ending.budgets
  if not known then
    known = start_budgets(ending.now)
    ending.budgets = known
  end
  local names, member = list_budgets(known, budget, funds), id .. ':' .. generation
  for i = 1, #names do
    local one = read_budget(pool, known, names[i])
    local text = read_hold(pool, one, member)
    if text then book_hold(one, member, text, died) end
  end
end

-- Looks at what attempts hold of a budget, from a cursor of HSCAN on, and books the holds of attempts that do not run: they have lost
-- their tasks without an end, because Redis has lost writes. Returns the next cursor, and how many it booked.
local function book_lost(pool, known, budget, cursor, count)
  local reply = redis.call('HSCAN', pool .. ':holds:' .. budget.name, cursor, 'COUNT', count)
  local found, booked, seen = reply[2], 0, {}
  for i = 1, #found, 2 do
    local member = found[i]
    local id, generation = string.match(member, '^(.*):(%d+)$')
    local task_key = pool .. ':task:' .. (id or '')
    if not has_type(known.types, task_key, 'hash') then task_key = pool .. ':task:' end
    local task = read_task(task_key, 'state', 'gen')
    -- HSCAN may return a member twice.
    if not seen[member] and (task.state ~= 'assigned' or task.gen ~= generation) then
      book_hold(budget, member, found[i + 1], true)
      booked = booked + 1
    end
    seen[member] = true
  end
  return reply[1], booked
end

-- Returns a budget as a command defines it: usd tokens calls seconds soft per at_hard lost, `=` for what stays as it is.
local function changed_budget(pool, known, name, definition)
  local words = {}
  for word in string.gmatch(definition, '%S+') do words[#words + 1] = word end
  local budget = read_budget(pool, known, name)
  local is_new = budget.closed == 'undefined'
  local limit = {}
  for i = 1, 4 do
    if words[i] == '=' then
      limit[i] = budget.limit and budget.limit[i] or false
    else
      limit[i] = tonumber(words[i]) or false
    end
  end
  local function kept(word, before)
    if word == '=' then return before end
    return word ~= '-' and word or false
  end
  return budget, is_new, limit, kept(words[5], budget.soft), kept(words[6], budget.per), kept(words[7], budget.at_hard), kept(words[8], budget.lost)
end

-- Returns why a command may not define a budget so, or nil: `damaged`, or `below` with the unit and what is spent of it. A
-- budget that begins to count by day, or ends it, begins with nothing spent.
local function refuses_budget(pool, known, name, definition)
  if not has_type(known.types, pool .. ':budgets', 'set') then return 'damaged' end
  local budget, is_new, limit, _, per = changed_budget(pool, known, name, definition)
  check_holds(pool, known, budget)
  if budget.closed and not is_new then return 'damaged' end
  for i = 1, (is_new or per ~= budget.per) and 0 or 4 do
    if limit[i] and limit[i] < budget.spent[i] then return 'below', unit_names[i] .. ' ' .. integer(budget.spent[i]) end
  end
  return nil
end

-- Stores the account of a day.
local function store_day(budget_key, budget)
  redis.call('HSET', budget_key, 'day', integer(budget.day), 'spent', format_amounts(budget.spent))
  if budget.other then redis.call('HSET', budget_key, 'other', budget.other) end
end

-- Defines a budget, or changes what the command names of it.
local function set_budget(pool, known, name, definition)
  local budget, is_new, limit, soft, per, at_hard, lost = changed_budget(pool, known, name, definition)
  local budget_key = pool .. ':budget:' .. name
  local anew = is_new or per ~= budget.per
  redis.call('HSET', budget_key, 'limit', format_amounts(limit))
  if is_new then redis.call('HSET', budget_key, 'held', '0 0 0 0') end
  if anew then
    redis.call('HSET', budget_key, 'spent', '0 0 0 0', 'day', integer(math.floor(known.now / 86400000000)))
    redis.call('HDEL', budget_key, 'other')
  elseif budget.turned then
    store_day(budget_key, budget)
  end
  local words = {soft = soft, per = per, at_hard = at_hard, lost = lost}
  for field, word in pairs(words) do
    if word then redis.call('HSET', budget_key, field, word) else redis.call('HDEL', budget_key, field) end
  end
  redis.call('SADD', pool .. ':budgets', name)
  notify_supervisor(pool, 'budgets')
end

-- Returns whether attempts hold amounts of a budget, or tasks wait for it.
local function in_use(pool, name)
  local held_key = waiting_key(pool, name)
  return redis.call('EXISTS', pool .. ':holds:' .. name, held_key) > 0
end

-- Deletes a budget.
local function delete_budget(pool, name)
  redis.call('UNLINK', pool .. ':budget:' .. name)
  redis.call('SREM', pool .. ':budgets', name)
end

-- Adds amounts to the limits that a budget has, because a person granted them.
local function raise_limit(pool, known, name, amounts)
  local budget = read_budget(pool, known, name)
  if budget.closed then return end
  for i = 1, 4 do
    if budget.limit[i] then budget.limit[i] = math.min(most_amount, budget.limit[i] + amounts[i]) end
  end
  redis.call('HSET', pool .. ':budget:' .. name, 'limit', format_amounts(budget.limit))
  notify_supervisor(pool, 'budgets')
end

-- Stores what a call has changed of budgets, and notifies supervisors of those that have room for tasks that wait for it.
local function flush_budgets(pool, known)
  if known.run then end_run(known) end
  local freed = false
  for name, budget in pairs(known.found) do
    local set, gone, starts = budget.set, budget.gone, budget.starts
    local holds_key = pool .. ':holds:' .. name
    for i = 1, starts and #starts or 0 do
      local holds = starts[i]
      for first = 1, #holds, 1000 do
        redis.call('HSET', holds_key, unpack(holds, first, math.min(first + 999, #holds)))
      end
    end
    if set then
      for first = 1, #set, 1000 do
        redis.call('HSET', holds_key, unpack(set, first, math.min(first + 999, #set)))
      end
      for first = 1, #gone, 1000 do
        redis.call('HDEL', holds_key, unpack(gone, first, math.min(first + 999, #gone)))
      end
    end
    if budget.changed then
      local budget_key = pool .. ':budget:' .. name
      budget.held_text = budget.held_text or format_amounts(budget.held)
      if budget.turned then
        redis.call('HSET', budget_key, 'held', budget.held_text)
        store_day(budget_key, budget)
      elseif budget.spent_text then
        redis.call('HSET', budget_key, 'held', budget.held_text)
      else
        budget.spent_text = format_amounts(budget.spent)
        redis.call('HSET', budget_key, 'spent', budget.spent_text, 'held', budget.held_text)
      end
    end
    if budget.freed and not freed then
      local held_key = waiting_key(pool, name)
      freed = redis.call('EXISTS', held_key) == 1
    end
  end
  if freed then notify_supervisor(pool, 'budgets') end
end

-- Returns the state of budgets for the worker, which is stored: name, limit, spent, held, soft, at_hard, per.
local function show_budgets(known, names)
  local shown = {}
  for i = 1, #names do
    local one = known.found[names[i]]
    if one and not one.closed then
      shown[#shown + 1] = {names[i], one.limit_text, one.spent_text or format_amounts(one.spent), one.held_text or format_amounts(one.held),
        one.soft or '', one.at_hard or 'stop', one.per or ''}
    end
  end
  return shown
end
