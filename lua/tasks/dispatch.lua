#!lua flags=allow-oom
-- Assigns the ready tasks of a skill to the least loaded of the agents in `room:S`. An agent without entries gets tasks at
-- once, the one that was looked at the longest ago first. Otherwise the agents that the call has looked at get them in the
-- order of their entries per slot. Each gets its share of the waiting tasks, the best of all its queues, as `assign` does.
-- A call looks at 100 agents at most, and moves `limit` tasks and 256 KiB of envelopes at most. Agents that may get no task
-- leave `room:S`: when their room, their limits or their workers change, they return (protocol rule 6).
-- returns: assigned, left (1: tasks and agents to look at remain: call again), without (for that call), now_us,
--          then agent, next_free_us of each agent whose limits hold tasks back (0: unknown)
-- repeat: assigns further tasks
local pool    = KEYS[1]             -- key: root of the pool's slot
local skill   = ARGV[1]             -- str: skill
local limit   = tonumber(ARGV[2])   -- int: at most this many tasks (500)
local without = tonumber(ARGV[3])   -- int: 0 in the first call, then from the last answer: agents that could take no task
local now_arg = ARGV[4]             -- time: test override, microseconds
--@include time: now_us, integer
--@include desired: is_active
--@include assigning: start_assigning, is_spent, look_at_agents, is_closed, open_place, count_left, read_agent, filled_places, fill_inbox, mark_agent, flush_assigning
--@rare: stored_size, collect_bytes, add_bytes, stop_waiting
--@rare: choose_task, end_turn, reopen_place, parse_flow, flow_of, free_place, wake_flows
--@rare: scopes_by_queue, is_active, agent_blocked, any_session_stopped, stopped_scope, live_workers, live_versions, any_refuses
--@rare: refusing_scope, parse_version_scope, list_version_scope, unlist_scope, hold_tasks, open_held, awaited_tasks, close_queues
--@rare: mark_awaited, limited_room
--@rare: limit_room, take_slots, put_suspects, notify_of_suspects, end_task, append_event, forgiven_failures
--@rare: pass_lane, flush_turns, note_activity, names_budgets, refusing_budget, flush_budgets, tell_followers

-- Agents that were looked at less than `fresh_us` ago are passed over when the call can choose among a few others, or has one
-- for each share of the tasks, so that tasks in quick succession do not look at all agents each.
local look_at, choices, fresh_us = 100, 8, 5000
local now = now_us(now_arg)
local run = start_assigning(pool, now, 1)
local queue, room_key = 'skill:' .. skill, pool .. ':room:' .. skill
local waiting, held_places = count_left(open_place(pool, run, 'queue:' .. queue)), {}
if waiting == 0 then
  -- Tasks that versions refused: an agent that gets other tasks takes them too, so only these are worth a search.
  local scopes = run.scopes[queue] or {}
  for i = 1, #scopes, 2 do held_places[#held_places + 1] = 'held:' .. scopes[i] end
end
if waiting > 0 and run.any_waits then
  -- Of the tasks of a key only the first one stands in the queue.
  waiting = waiting + tonumber(redis.call('ZSCORE', pool .. ':share:queues', queue) or 0)
end
local listed = redis.call('ZCARD', room_key)
local closed = run.any_active and (is_active(pool, 'stop:all') or is_closed(pool, run, queue))
if closed or listed == 0 or (waiting == 0 and #held_places == 0) then return {0, 0, 0, now} end
local share = math.max(1, math.ceil(waiting / listed))
-- One read of the queue serves the agents that are looked at.
run.ahead = math.min(waiting, share * math.min(listed, look_at), limit)
local enough = math.max(choices, math.ceil(waiting / share))
-- The order of agents survives a clock that steps back.
local clock = math.max(now, tonumber(redis.call('ZRANGE', room_key, -1, -1, 'WITHSCORES')[2]))

local left, idle, full, busy, given, gone, holds = true, 0, {}, {}, {}, {}, {}

local function is_done()
  return not left or is_spent(run, limit)
end

-- Gives an agent its share of the tasks.
local function give(agent)
  local before = run.assigned
  local result, next_free = fill_inbox(pool, run, agent, math.min(share, limit - before))
  if result == 'limited' then
    gone[#gone + 1] = agent.name
    holds[#holds + 1] = agent.name
    holds[#holds + 1] = next_free
  elseif result == 'full' then
    agent.given = true
    full[#full + 1] = agent
  else
    given[#given + 1] = agent.name
    -- Its versions refused the tasks.
    if result == 'done' and run.assigned == before then idle = idle + 1 end
  end
  if waiting > 0 then
    left = result ~= 'done' and count_left(open_place(pool, run, 'queue:' .. queue)) > 0
  else
    left = false
    for i = 1, #held_places do left = left or count_left(open_place(pool, run, held_places[i])) > 0 end
  end
end

local function look(name)
  local agent = read_agent(pool, run, name)
  if not agent or not agent.skilled[skill] then
    gone[#gone + 1] = name
  elseif agent.room <= 0 then
    -- Awaited tasks fit into lent slots (protocol rule 32), and the mark depends on those that are left.
    if redis.call('EXISTS', pool .. ':lent:' .. name) == 1 then give(agent) else full[#full + 1] = agent end
  else
    local most = agent.slots * (1 + agent.backlog)
    agent.load, agent.place = (most - agent.room) / agent.slots, #busy
    if agent.load <= 0 then give(agent) else busy[#busy + 1] = agent end
  end
end

local seen, page, stop = 0, 4, false
while not stop do
  local found = redis.call('ZRANGE', room_key, seen, seen + page - 1, 'WITHSCORES')
  stop = #found < 2 * page
  if page > 4 and not is_done() then
    local names = {}
    for i = 1, #found, 2 do names[#names + 1] = found[i] end
    if #names > 1 then look_at_agents(pool, run, names) end
  end
  for i = 1, #found, 2 do
    if is_done() or seen >= look_at or (#busy > 0 and seen >= enough and tonumber(found[i + 1]) > clock - fresh_us) then
      stop = true
      break
    end
    seen = seen + 1
    look(found[i])
  end
  page = 32
end
table.sort(busy, function(a, b)
  if a.load ~= b.load then return a.load < b.load end
  return a.place < b.place
end)
local looked = {}
for i = 1, #busy do
  if is_done() then looked[#looked + 1] = busy[i].name else give(busy[i]) end
end
for i = 1, #full do
  local agent = full[i]
  local waits = left or (agent.given and #filled_places(pool, run, agent) > 0)
  if waits then mark_agent(pool, agent) end
  if waits and agent.suspects == 0 then
    gone[#gone + 1] = agent.name
  else
    -- Entries that leave the inbox make no room while suspects wait.
    idle = idle + 1
    if agent.given then given[#given + 1] = agent.name else looked[#looked + 1] = agent.name end
  end
end
local scored = {}
for i = 1, #looked do scored[2 * i - 1], scored[2 * i] = integer(clock + i), looked[i] end
-- Agents that got tasks come last, because they have the most entries.
for i = 1, #given do
  local n = #looked + i
  scored[2 * n - 1], scored[2 * n] = integer(clock + n), given[i]
end
if #scored > 0 then redis.call('ZADD', room_key, unpack(scored)) end
if #gone > 0 then redis.call('ZREM', room_key, unpack(gone)) end
flush_assigning(pool, run)
if run.assigned > 0 then without = 0 end
without = without + idle
local again = left and listed - #gone > without
return {run.assigned, again and 1 or 0, without, now, unpack(holds)}
