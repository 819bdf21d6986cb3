#!lua
-- Accepts tasks: up to 500 rows, each judged for itself. A row may end after its last unusual column. A row that
-- replaces the tasks of a long lane returns `crowded` after 500 ended tasks; sent again, it continues.
-- Rows with `after` are a flow, which is accepted whole or not at all (protocol rule 40). `after` has the numbers of the rows above
-- after whose tasks the task runs, maybe none; below 0: also after a failure.
-- status, per row: created | duplicate id | conflict id | full queue or cap | stale parent or schedule | stopped slot | busy
-- task | crowded lane | lost id (`apart`: its record has no arguments) | cancelling parent (it is told to stop) | unfunded budget
-- (no such budget is set) | invalid column (no client sends such a value; one of another type is an error)
-- | withheld id (that row of its flow is refused) | gone (its flow was submitted before, and this task is not kept any longer)
-- returns: for each row that was not created its number, its status, and the value named above
-- repeat: returns duplicate and the row's own id for a task that exists; changes nothing
local pool        = KEYS[1]                   -- key: root of the pool's slot
local rows        = cmsgpack.unpack(ARGV[1])  -- rows: id envelope rank ttl_s queue skill delay_ms at_ms start_by_ms idem digest parent parent_generation lane on_busy fire session apart tags fair budget after
local max_tasks   = tonumber(ARGV[2])         -- int: cap of one queue
local max_wait_s  = tonumber(ARGV[3])         -- int: lifetime of a task that waits
local caps        = ARGV[4]                   -- str: bytes of a queue, bytes of the pool, number of queues
local now_arg     = ARGV[5]                   -- time: test override, microseconds
--@include time: now_us, day_s, integer
--@include envelope: skill_queue
--@include record: rank_of
--@include held_bytes: weigh
--@include counter: increment_counters
--@include queue: add_to_queue

local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)

-- Returns what no client sends so as the id or the queue of a task, or nil. Such a task could not be read, or not end, and
-- would keep others of the same call from ending. `known` are queues that fit.
local function misfit(id, queue, known)
  if #id ~= 36 or string.find(id, '[^%x-]') then return 'id' end
  if not known[queue] then
    if #queue > 134 or not string.find(queue, '^[as][gk][ei][nl][tl]:%w[%w._@:-]*$') then return 'queue' end
    known[queue] = true
  end
  return nil
end

-- Accepts the usual task of a usual call, which is one without any option, as the rest of the script would. Returns false
-- when a case needs the rest, and has changed nothing then. A call that ends here does not define the functions below,
-- which would take as long as all commands of the call.
local function accept_plain(row)
  local id, envelope = row.id, row.envelope
  local queue = skill_queue(envelope)
  local task_key, queue_key = pool .. ':task:' .. id, pool .. ':queue:' .. queue
  if misfit(id, queue, {}) or weigh(id, #envelope) > 0 then return false end
  -- There is rarely any: a known task, a cap that was reached, suspects, tasks that versions refused, tasks that a stop holds.
  if redis.call('EXISTS', task_key, pool .. ':queues:full', pool .. ':suspects', pool .. ':refused', pool .. ':held') > 0 then
    return false
  end
  local slots = redis.call('HMGET', pool .. ':desired', 'stop:all', 'stop:' .. queue, 'drain:queue:' .. queue, 'sessions')
  -- 49 is the '1' of an active command. The last field is the number of stopped sessions and families.
  for i = 1, 3 do
    if slots[i] and string.byte(slots[i]) == 49 then return false end
  end
  if slots[4] and slots[4] ~= '0' then return false end
  local length = redis.call('ZCARD', queue_key)
  if length >= max_tasks then return false end
  redis.call('HSET', task_key, 'gen', integer(now_ms), 'state', 'ready', 'env', envelope)
  redis.call('EXPIRE', task_key, integer(max_wait_s))
  add_to_queue(pool, queue, {integer(rank_of(nil) + now_ms), id}, length == 0)
  increment_counters(pool, now, {submitted = 1})
  return true
end

-- A row without options has two columns.
if #rows == 1 and next(rows[1], 2) == nil and accept_plain(rows[1]) then return {} end

--@include key: has_type, percent_encode
--@include envelope: session_of, family_of
--@include record: read_task, has_ended, lifetime
--@include desired: is_active
--@include version: parse_version_scope
--@include queue: put_ready, put_due
--@include lane: pass_lane, flush_turns
--@include share: ready_place
--@include family: collect_member, flush_children, flush_sessions
--@include tag: collect_tags, flush_tags
--@include ending: start_endings, flush_endings
--@include held_bytes: read_bytes, count_queues, is_full, mark_cap, unmark_caps
--@include follow: await_predecessors
--@include cancel: start_cancelling, has_begun, cancel_task, flush_cancelling, reason_below, note_children
--@include schedule: fire_is_stale, record_fire
--@include notify: notify_supervisor
--@rare: is_known, refused_by, held_by, percent_encode, live_member, make_way
--@rare: pass_lane, fire_is_stale, record_fire, parse_version_scope, put_due, append_event, has_begun, cancel_task, flush_cancelling
--@rare: flush_turns, flush_children, session_of, family_of, note_activity, drop_arguments, reason_below, note_children, collect_tags, flush_tags
--@rare: exceeded_cap, read_bytes, count_queues, is_full, mark_cap, unmark_caps, add_bytes, stored_size, collect_bytes
--@rare: join_flow, wake_flows, ready_place, flow_length, join_budgets, flush_budgets, end_spending
--@rare: flow_misfit, find_followers, refuse_flow, await_predecessors, leave_joins, flush_joins, tell_followers

local answers, accepted, places, dues, inherited = {}, {}, {}, {}, {}
local lengths, seen_ids, seen_keys, known_queues = {}, {}, {}, {}
local lanes, crowds, may_end = {}, {}, 500
local ending = start_endings(now)
local bytes_added, pool_added, new_queues = ending.bytes, 0, 0
local most_budgets, row_budgets = 8, {}
local edges, most_edges = 0, 10000
local is_flow = rows[1] and rows[1].after ~= nil
local bytes_before, pool_before, most_queue, most_pool, most_queues

local task_prefix, task_keys = pool .. ':task:', {}
for i = 1, #rows do task_keys[i] = task_prefix .. rows[i].id end
local desired_key, full_key = pool .. ':desired', pool .. ':queues:full'
task_keys[#rows + 1], task_keys[#rows + 2] = desired_key, full_key
-- One command looks for tasks that are known, for active commands and for caps that were reached: there is rarely any.
local found = redis.call('EXISTS', unpack(task_keys))
local any_active = found > 0 and redis.call('EXISTS', desired_key) == 1
local any_full = found > 0 and redis.call('EXISTS', full_key) == 1
local any_known, refusing = found > (any_active and 1 or 0) + (any_full and 1 or 0), {}
local any_held = any_active and redis.call('EXISTS', pool .. ':held') == 1

-- Returns the slot of the first active command that refuses a new task, a stop or a drain of its queue; or nil.
local function refused_by(queue, skill, id, envelope)
  local session = session_of(envelope)
  local slots = {'stop:all', 'stop:' .. queue, 'drain:queue:' .. queue}
  if skill then slots[4] = 'stop:skill:' .. skill end
  if session then slots[#slots + 1] = 'stop:session:' .. session end
  local family = family_of(id, envelope)
  if family then slots[#slots + 1] = 'stop:family:' .. family end
  for i = 1, #slots do
    local slot = slots[i]
    if refusing[slot] == nil then
      local mark = is_active(pool, slot) and string.sub(redis.call('HGET', pool .. ':desired', slot), 2, 2)
      refusing[slot] = mark == 'r' or mark == 'b'
    end
    if refusing[slot] then return slot end
  end
  return nil
end

-- Returns how many tasks are held back for a scope: none in a key of another type, which a client may have written.
local function held_by(scope)
  local place = 'held:' .. scope
  if not lengths[place] then
    local held_key = pool .. ':' .. place
    lengths[place] = has_type({}, held_key, 'zset') and redis.call('ZCARD', held_key) or 0
  end
  return lengths[place]
end

local refused_scopes
-- Returns how many tasks of a queue wait for another version of their skill.
local function refused_length(queue)
  refused_scopes = refused_scopes or redis.call('ZRANGE', pool .. ':refused', 0, 999)
  local length = 0
  for i = 1, #refused_scopes do
    local _, held_for = parse_version_scope(refused_scopes[i])
    if held_for == queue then length = length + held_by(refused_scopes[i]) end
  end
  return length
end

-- Returns how many tasks wait in a queue, a lane, `scheduled`, or `after`.
local function length_of(place)
  if not lengths[place] then
    local key = pool .. ':queue:' .. place
    local queued = place ~= 'scheduled' and place ~= 'after' and string.sub(place, 1, 5) ~= 'lane:'
    if not queued then key = pool .. ':' .. place end
    lengths[place] = redis.call('ZCARD', key) + (queued and refused_length(place) or 0)
      + redis.call('ZCARD', pool .. ':suspects:' .. place)
    local agent = string.match(place, '^agent:(.*)$')
    if agent then lengths[place] = lengths[place] + redis.call('ZCARD', pool .. ':parked:' .. agent) end
  end
  return lengths[place]
end

-- Returns how many tasks with a key wait in a queue beside those that stand in it.
local function flow_length(queue)
  local place = 'share:' .. queue
  lengths[place] = lengths[place] or tonumber(redis.call('ZSCORE', pool .. ':share:queues', queue) or 0)
  return lengths[place]
end

-- Returns what leaves no room for a task in a queue, or nil: the queue, or the slot of a stop that holds tasks of the
-- same session, family or skill back. They would stand in the queue without the stop (protocol rule 7). Only tasks with a key wait
-- behind others with a key.
local function full_place(queue, skill, id, envelope, fair)
  local length = length_of(queue)
  if fair then length = length + flow_length(queue) end
  if length >= max_tasks then return queue end
  if not any_held then return nil end
  -- Tasks of a skill's own queue, whose rows name no skill, stay there while their skill is stopped.
  if skill and length + held_by('skill:' .. skill) >= max_tasks then return 'stop:skill:' .. skill end
  local session = session_of(envelope)
  if session and length + held_by('session:' .. percent_encode(session)) >= max_tasks then
    return 'stop:session:' .. session
  end
  local family = family_of(id, envelope)
  if family and length + held_by('family:' .. family) >= max_tasks then return 'stop:family:' .. family end
  return nil
end

-- Returns the live task of a lane, or nil. A member that was lost without an end is marked as `stale` and blocks no
-- task.
local function live_member(key, lane)
  local ids = redis.call('ZRANGE', pool .. ':lane:' .. key, 0, 99)
  for i = 1, #ids do
    local state = redis.call('HGET', pool .. ':task:' .. ids[i], 'state')
    if state and not has_ended(state) then return ids[i] end
    lane.stale = ids[1]
  end
  return nil
end

-- Returns why a lane refuses a new task: a status and its value, or nil (protocol rules 21, 22).
local function meet_lane(key, on_busy, id)
  local place, lane = 'lane:' .. key, lanes[key]
  if not lane then
    lane = {}
    lanes[key] = lane
  end
  if lane.crowded then return 'crowded', key end
  local count = length_of(place)
  if count == 0 and not lane.last then lane.last = 0 end
  if on_busy and count > 0 and not lane.owner then
    lane.owner = live_member(key, lane)
    if not lane.owner then
      count = 0
      lengths[place] = 0
    end
  end
  if on_busy == 'reject' and count > 0 then return 'busy', lane.owner end
  if count >= max_tasks then return 'full', place end
  if on_busy == 'replace' and count > 0 then
    if count > may_end then
      lane.crowded = true
      crowds[#crowds + 1] = {key, id, may_end}
      may_end = 0
      return 'crowded', key
    end
    may_end = may_end - count
    lengths[place] = 1
  end
  -- Later rows of this call find this task ahead of them.
  if count == 0 or on_busy then lane.owner = id end
  return nil
end

-- Returns whether a task exists: with more than the arguments that its client sent before this call.
local function is_known(task_key, row)
  if not row.apart then return redis.call('EXISTS', task_key) == 1 end
  return redis.call('HLEN', task_key) > redis.call('HEXISTS', task_key, 'args')
end

-- Returns `after` if a row of a flow names other rows than those above it, or there are rows of a flow and others; else nil.
local function flow_misfit(i, row)
  if (row.after == nil) ~= (rows[1].after == nil) then return 'after' end
  local seen = {}
  for _, number in ipairs(row.after or {}) do
    local place = math.abs(number)
    edges = edges + 1
    if place < 1 or place >= i or place % 1 ~= 0 or seen[place] or edges > most_edges then return 'after' end
    seen[place] = true
  end
  if row.after and (row.fire or row.on_busy) then return 'on_busy' end
  return nil
end

-- Returns what no client sends so in the columns of an unusual row, or nil. A value of another type is an error, before
-- anything is written.
local function unusual_misfit(row)
  local rank, ttl_s, delay_ms, at_ms, start_by = row.rank, row.ttl_s, row.delay_ms, row.at_ms, row.start_by_ms
  if rank and not (rank > -1e15 and rank < 1e15) then return 'rank' end
  if ttl_s and not (ttl_s >= 0 and ttl_s < 1e10 and ttl_s % 1 == 0) then return 'ttl_s' end
  if delay_ms and not (delay_ms >= 0 and delay_ms < 1e13) then return 'delay_ms' end
  if at_ms and not (at_ms >= 0 and at_ms < 1e15) then return 'at_ms' end
  if start_by and not (start_by >= 0 and start_by < 1e15) then return 'start_by_ms' end
  local words = (row.skill or '') .. (row.idem or '') .. (row.digest or '') .. (row.parent or '')
    .. (row.parent_generation or '') .. (row.lane or '') .. (row.on_busy or '') .. (row.session or '')
  if row.idem and not row.digest then return 'digest' end
  if row.after and not is_flow then return 'after' end
  -- A `:` ends the queue and the rank in the name of a flow.
  if row.fair and (#row.fair > 768 or not string.find(row.fair, '^[%w._%%-]+$')) then return 'fair' end
  if row.budget and (#row.budget > 1040 or not string.find(row.budget, '^%w[%w._@:-]*[%w._@: -]*$')) then return 'budget' end
  local tags = row.tags
  if tags then
    if #tags > 1024 then return 'tags' end
    words = words .. table.concat(tags)
  end
  --@row fire: schedule due fired next missed
  local fire = row.fire
  if fire then
    words = words .. fire.schedule .. fire.due .. fire.fired .. fire.next
    if not (fire.missed >= 0 and fire.missed < 1e15) then return 'fire' end
  end
  -- Ids and names, encoded as in keys.
  if #words > 1048576 or string.find(words, '[^!-~]') then return 'text' end
  return nil
end

-- Returns the cap that a task would exceed, as the submit answers it, or nil. Marks a cap that is reached, so that tasks
-- which count for none are refused too.
local function exceeded_cap(queue, size)
  if not bytes_before then
    local of_queue, of_pool, queues = string.match(caps, '^(%d+) (%d+) (%d+)$')
    bytes_before, most_queue, most_pool, most_queues = {}, tonumber(of_queue), tonumber(of_pool), tonumber(queues)
  end
  if not bytes_before[queue] then bytes_before[queue], pool_before = read_bytes(pool, queue) end
  local held, held_in_pool = bytes_before[queue] + (bytes_added[queue] or 0), pool_before + pool_added
  local name, detail
  if held + size > most_queue then
    name, detail = queue, 'bytes ' .. integer(held) .. ' ' .. queue
  elseif held_in_pool + size > most_pool then
    name, detail = '*', 'bytes ' .. integer(held_in_pool) .. ' *'
  elseif length_of(queue) == 0 and count_queues(pool) + new_queues >= most_queues then
    name, detail = 'queues', 'queues'
  end
  if name then
    mark_cap(pool, name)
    any_full = true
  elseif any_full then
    unmark_caps(pool, queue, count_queues(pool) + new_queues < most_queues)
  end
  return detail
end

-- Joins the budgets of a row with those of its parent. Returns a status and its value if the row may not have them.
local function join_budgets(i, budget)
  local names, seen, checked = {}, {}, row_budgets
  for name in string.gmatch((inherited[i] or '') .. ' ' .. budget, '%S+') do
    if not seen[name] then names[#names + 1] = name end
    seen[name] = true
  end
  if #names > most_budgets then return 'invalid', 'budget' end
  for name in string.gmatch(budget, '%S+') do
    if checked[name] == nil then checked[name] = redis.call('EXISTS', pool .. ':budget:' .. name) == 1 end
    if not checked[name] then return 'unfunded', name end
  end
  inherited[i] = table.concat(names, ' ')
end

local function judge(i, row)
  local id, idem, digest = row.id, row.idem, row.digest
  local queue = row.queue or skill_queue(row.envelope)
  local wrong = misfit(id, queue, known_queues) or (next(row, 2) ~= nil and unusual_misfit(row))
    or (is_flow and flow_misfit(i, row))
  if wrong then return 'invalid', wrong end
  if seen_ids[id] or (any_known and is_known(task_keys[i], row)) then return 'duplicate', id end
  if row.apart and redis.call('HEXISTS', task_keys[i], 'args') == 0 then return 'lost', id end
  if idem then
    local holder = seen_keys[idem] or redis.call('GET', pool .. ':idem:' .. idem)
    if holder then
      local owner, known = string.match(holder, '^(%S+) (.*)$')
      if known == digest then return 'duplicate', owner end
      return 'conflict', owner
    end
  end
  if row.parent then
    local parent = read_task(pool .. ':task:' .. row.parent, 'state', 'gen', 'cancel', 'budget')
    if parent.state ~= 'assigned' or parent.gen ~= row.parent_generation then return 'stale', row.parent end
    -- Its children are being cancelled, and a new one would be missed.
    if parent.cancel then return 'cancelling', row.parent end
    if parent.budget then inherited[i] = parent.budget end
  end
  --@row fire: schedule
  if row.budget then
    local status, detail = join_budgets(i, row.budget)
    if status then return status, detail end
  end
  local fire = row.fire
  if fire and fire_is_stale(pool, fire) then return 'stale', fire.schedule end
  local due = row.at_ms or 0
  if row.delay_ms and now_ms + row.delay_ms > due then due = now_ms + row.delay_ms end
  local refusal = any_active and refused_by(queue, row.skill, row.id, row.envelope)
  if refusal then return 'stopped', refusal end
  local size = #row.envelope + (row.apart and redis.call('HSTRLEN', task_keys[i], 'args') or 0)
  local weight = weigh(id, size)
  if weight > 0 or (any_full and is_full(pool, queue)) then
    local excess = exceeded_cap(queue, size)
    if excess then return 'full', excess end
  end
  local waits_in, lane = queue, row.lane
  local follows = row.after and row.after[1]
  if follows then
    waits_in = 'after'
  elseif due > now_ms then
    waits_in = 'scheduled'
  elseif lane then
    local status, detail = meet_lane(lane, row.on_busy, id)
    if status then return status, detail end
    local place = 'lane:' .. lane
    if length_of(place) > 0 then
      waits_in = place
    elseif not full_place(queue, row.skill, row.id, row.envelope, row.fair) then
      lengths[place] = 1
    end
  end
  local full
  if waits_in == queue then
    full = full_place(queue, row.skill, row.id, row.envelope, row.fair)
  elseif length_of(waits_in) >= max_tasks then
    full = waits_in
  end
  if full then return 'full', full end
  local length = length_of(waits_in)
  if row.fair and waits_in == queue then
    length = length + flow_length(queue)
    lengths['share:' .. queue] = flow_length(queue) + 1
  else
    lengths[waits_in] = length + 1
  end
  if length == 0 and waits_in == queue then new_queues = new_queues + 1 end
  if weight > 0 then bytes_added[queue], pool_added = (bytes_added[queue] or 0) + weight, pool_added + weight end
  seen_ids[id] = true
  if idem then seen_keys[idem] = id .. ' ' .. digest end
  accepted[#accepted + 1] = i
  places[i] = queue
  if due > now_ms and not follows then dues[i] = due end
  return nil
end

local born, usual_keep_s, usual_score = integer(now_ms), integer(max_wait_s), integer(rank_of(nil) + now_ms)
local cancelling = start_cancelling()
local ready, scheduled, expiring = {}, {}, {}
local parents, sessions, indices, interrupted = {}, {}, {}, {}

-- Stores the places of the tasks accepted so far.
local function settle()
  for place, scored in pairs(ready) do put_ready(pool, place, scored) end
  if next(ending.turns) then flush_turns(pool, ending) end
  if #scheduled > 0 then put_due(pool, 'scheduled', scheduled) end
  if #expiring > 0 then put_due(pool, 'expiring', expiring) end
  ready, scheduled, expiring = {}, {}, {}
end

-- Adds a new task to its lane: at the end, or with `interrupt` behind the owner. Returns whether the task has the turn,
-- and the members that it may end.
local function enter_lane(key, on_busy, id)
  local lane_key, lane = pool .. ':lane:' .. key, lanes[key]
  if lane.stale then
    pass_lane(pool, ending, key, lane.stale)
    lane.stale = nil
  end
  if not lane.last then
    lane.last = tonumber(redis.call('ZRANGE', lane_key, -1, -1, 'WITHSCORES')[2] or 0)
  end
  local free, others = lane.last == 0, {}
  -- Scores are times, but never below those of members, because the clock may step back.
  local score = math.max(now, lane.last + 1)
  if on_busy == 'interrupt' and not free then
    local first = redis.call('ZRANGE', lane_key, 0, 1, 'WITHSCORES')
    if first[3] then
      score = tonumber(first[4]) - 1
      if tonumber(first[2]) >= score then redis.call('ZADD', lane_key, integer(score - 1), first[1]) end
    end
    others[1] = first[1]
  elseif on_busy == 'replace' and not free then
    others = redis.call('ZRANGE', lane_key, 0, -1)
  end
  lane.last = math.max(lane.last, score)
  redis.call('ZADD', lane_key, integer(score), id)
  return free, others
end

-- Ends the members of a lane that a new task interrupts or replaces; the last first, so that none of them gets the
-- turn.
local function make_way(others, on_busy, id)
  if #others == 0 then return end
  settle()
  for j = #others, 1, -1 do
    if on_busy == 'interrupt' then
      cancel_task(pool, ending, cancelling, others[j], 'interrupted by task ' .. id)
      interrupted[#interrupted + 1], interrupted[#interrupted + 2] = others[j], id
    elseif not has_begun(pool, cancelling, others[j]) then
      cancel_task(pool, ending, cancelling, others[j], 'replaced by task ' .. id)
    end
  end
end

-- Removes arguments that the client wrote for a row which was not created, unless the task that is there refers to them:
-- a success has dropped its own.
local function drop_arguments(task_key)
  local envelope = redis.call('HGET', task_key, 'env')
  if not envelope or not string.find(envelope, '\2args ', 1, true) then redis.call('HDEL', task_key, 'args') end
end

-- Returns the answers to a flow of which not all rows are accepted. A known task tells that the flow was accepted before: all of
-- it has the same ids, or keys of idempotency.
local function refuse_flow()
  local found, known, first = {}, nil, nil
  --@rows told: number status detail
  for n = 1, #answers, 3 do
    local i, status, detail = answers[n], answers[n + 1], answers[n + 2]
    found[i] = {status, detail}
    first = first or rows[i].id
    if status == 'duplicate' and known ~= 'id' then known = detail == rows[i].id and 'id' or 'key' end
  end
  local told = {}
  for i = 1, #rows do
    local id, one = rows[i].id, found[i]
    if known == 'id' then
      one = {'duplicate', id}
    elseif known and not (one and (one[1] == 'duplicate' or one[1] == 'conflict')) then
      one = {'gone', ''}
    end
    one = one or {'withheld', first}
    told[3 * i - 2], told[3 * i - 1], told[3 * i] = i, one[1], one[2]
    if rows[i].apart then drop_arguments(task_keys[i]) end
  end
  return told
end

-- Returns the followers of each row of a flow by its number, as its task stores them, and of each row the list of its
-- predecessors, as `after:ID` and as the field `after`.
local function find_followers()
  local followers, lists, names = {}, {}, {}
  for i = 1, #rows do
    local scored, words = {}, {}
    for n, number in ipairs(rows[i].after) do
      local place = math.abs(number)
      local id = rows[place].id
      scored[2 * n - 1], scored[2 * n] = number < 0 and 1 or 0, id
      words[n] = number < 0 and id .. '+' or id
      followers[place] = followers[place] or {}
      table.insert(followers[place], rows[i].id)
    end
    lists[i], names[i] = scored, table.concat(words, ' ')
  end
  return followers, lists, names
end

for i = 1, #rows do
  local status, detail = judge(i, rows[i])
  if status then
    local n = #answers
    answers[n + 1], answers[n + 2], answers[n + 3] = i, status, detail
    if rows[i].apart then drop_arguments(task_keys[i]) end
  end
end

if is_flow and #answers > 0 then return refuse_flow() end
local followers, lists, names = {}, {}, {}
if is_flow then followers, lists, names = find_followers() end
local kept_mark = '+' .. integer(max_wait_s + day_s)

for n = 1, #accepted do
  local i = accepted[n]
  local row, task_key, queue, due = rows[i], task_keys[i], places[i], dues[i]
  local id, rank, ttl_s, start_by, idem = row.id, row.rank, row.ttl_s, row.start_by_ms, row.idem
  local state, keep_s, score, in_the_way = 'ready', usual_keep_s, usual_score, nil
  if rank then score = integer(rank + now_ms) end
  if is_flow and lists[i][1] then
    state = 'awaiting_tasks'
    await_predecessors(pool, id, lists[i], born, max_wait_s)
  elseif due then
    state = 'scheduled'
    keep_s = max_wait_s + math.ceil((due - now_ms) / 1000)
    scheduled[#scheduled + 1] = integer(due)
    scheduled[#scheduled + 1] = id
  elseif row.lane then
    local free, others = enter_lane(row.lane, row.on_busy, id)
    if not free then state, in_the_way = 'waiting', others end
  end
  if state == 'ready' then
    local place = queue
    if row.fair then place = ready_place(queue, row.fair, rank) end
    local scored = ready[place]
    if not scored then
      scored = {}
      ready[place] = scored
    end
    local at = #scored
    scored[at + 1], scored[at + 2] = score, id
  end
  if row.parent then collect_member(parents, row.parent, id, keep_s + lifetime(ttl_s)) end
  if row.session then collect_member(sessions, row.session, id, keep_s + lifetime(ttl_s)) end
  if row.tags then collect_tags(indices, row.tags, id) end
  local budget = inherited[i]
  if rank or ttl_s or row.queue or start_by or idem or due or row.lane or row.session or row.fair or budget or is_flow then
    local fields = {}
    -- Defaults are not stored: they would be a third of a small record.
    if row.queue and queue ~= skill_queue(row.envelope) then fields[#fields + 1], fields[#fields + 2] = 'queue', queue end
    if row.skill then fields[#fields + 1], fields[#fields + 2] = 'skill', row.skill end
    if rank and rank ~= rank_of(nil) then fields[#fields + 1], fields[#fields + 2] = 'rank', integer(rank) end
    if ttl_s and ttl_s ~= lifetime(nil) then fields[#fields + 1], fields[#fields + 2] = 'ttl', ttl_s end
    if start_by then
      fields[#fields + 1], fields[#fields + 2] = 'by', integer(start_by)
      expiring[#expiring + 1] = integer(start_by)
      expiring[#expiring + 1] = id
    end
    if due then fields[#fields + 1], fields[#fields + 2] = 'due', integer(due) end
    if row.lane then fields[#fields + 1], fields[#fields + 2] = 'lane', row.lane end
    if row.session then fields[#fields + 1], fields[#fields + 2] = 'session', row.session end
    if row.fair then fields[#fields + 1], fields[#fields + 2] = 'fair', row.fair end
    if budget then fields[#fields + 1], fields[#fields + 2] = 'budget', budget end
    if state == 'awaiting_tasks' then
      fields[#fields + 1], fields[#fields + 2] = 'after', names[i]
      if row.delay_ms or row.at_ms then
        fields[#fields + 1], fields[#fields + 2] = 'later', integer(row.delay_ms or 0) .. ' ' .. integer(row.at_ms or 0)
      end
    end
    if followers[i] then
      fields[#fields + 1], fields[#fields + 2] = 'followers', table.concat(followers[i], ' ')
    end
    -- The next attempt of a parent submits the flow again, and must find all of it.
    if is_flow and (followers[i] or row.parent) then fields[#fields + 1], fields[#fields + 2] = 'joined', kept_mark end
    if idem then
      fields[#fields + 1], fields[#fields + 2] = 'idem', idem
      redis.call('SET', pool .. ':idem:' .. idem, id .. ' ' .. row.digest, 'EX', keep_s)
    end
    redis.call('HSET', task_key, 'gen', born, 'state', state, 'env', row.envelope, unpack(fields))
  else
    redis.call('HSET', task_key, 'gen', born, 'state', state, 'env', row.envelope)
  end
  redis.call('EXPIRE', task_key, keep_s)
  if row.fire then record_fire(pool, now_ms, row.fire, id) end
  if in_the_way and in_the_way[1] then make_way(in_the_way, row.on_busy, id) end
end
--@rows crowds: lane id room
for i = 1, #crowds do
  local key, id, room = crowds[i].lane, crowds[i].id, crowds[i].room
  if room > 0 then make_way(redis.call('ZRANGE', pool .. ':lane:' .. key, -room, -1), 'replace', id) end
end
settle()
if next(cancelling.entries) then flush_cancelling(pool, cancelling) end
if next(parents) then flush_children(pool, parents) end
for i = 1, #interrupted, 2 do
  -- The promoter of the supervisor cancels its children, also those of this call.
  local reason = reason_below(interrupted[i], 'interrupted by task ' .. interrupted[i + 1])
  if note_children(pool, interrupted[i], reason) then notify_supervisor(pool, 'scheduled') end
end
flush_sessions(pool, sessions, born)
if next(indices) then flush_tags(pool, indices) end
if #accepted > 0 then ending.counts.submitted = #accepted end
flush_endings(pool, ending)
return answers
