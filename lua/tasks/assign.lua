#!lua flags=allow-oom
-- Moves the best ready tasks of agents' queues into their inboxes, agent by agent: as many as the free slots of its workers,
-- its limits, `limit` and 256 KiB of envelopes allow, for all agents together. A task that is assigned has taken its slots
-- of the limits. After an agent got a skill, a call also returns up to 500 parked tasks to its queue, of one agent. An agent
-- that is not marked as full is listed in `room:S` of its skills. A queue that agents share is read and changed once.
-- returns: assigned, now_us, then of each agent that the supervisor must come back to, those first that the call did not
--          come to: agent, left (1: tasks and room, or tasks to unpark, remain: call again), next_free_us (0: no limit
--          holds tasks back)
-- repeat: assigns further tasks
local pool    = KEYS[1]             -- key: root of the pool's slot
local agents  = ARGV[1]             -- str: agents, blank-separated
local limit   = tonumber(ARGV[2])   -- int: at most this many (500)
local now_arg = ARGV[3]             -- time: test override, microseconds
--@include time: now_us
--@include parked: unpark
--@include registry: list_room
--@include assigning: start_assigning, is_spent, look_at_agents, read_agent, fill_inbox, mark_agent, flush_assigning
--@rare: stored_size, collect_bytes, add_bytes, stop_waiting
--@rare: choose_task, end_turn, reopen_place, parse_flow, flow_of, free_place, wake_flows
--@rare: scopes_by_queue, is_active, agent_blocked, any_session_stopped, stopped_scope, live_workers, unpark, live_versions, any_refuses
--@rare: refusing_scope, parse_version_scope, list_version_scope, unlist_scope, hold_tasks, open_held, awaited_tasks, close_queues
--@rare: mark_awaited, limited_room, take_slots, put_suspects, notify_of_suspects, end_task, append_event, forgiven_failures
--@rare: pass_lane, flush_turns, note_activity, names_budgets, refusing_budget, flush_budgets, tell_followers

local now = now_us(now_arg)
local names = {}
for name in string.gmatch(agents, '%S+') do names[#names + 1] = name end
local run = start_assigning(pool, now, #names)
if #names > 1 then look_at_agents(pool, run, names) end
local missed, served, unparked = {}, {}, false

local function come_back(answers, name, left, next_free)
  local n = #answers
  answers[n + 1], answers[n + 2], answers[n + 3] = name, left, next_free
end

-- Returns whether parked tasks of an agent remain to be returned to its queue.
local function return_parked(agent)
  if not agent.unpark then return false end
  if unparked then return true end
  unparked = true
  run.unfilled['agent:' .. agent.name] = nil
  return unpark(pool, agent.name, agent.skilled, agent.unpark, 500)
end

local function serve(name)
  local agent = read_agent(pool, run, name)
  if not agent then return end
  local unparking = return_parked(agent)
  local result, next_free = fill_inbox(pool, run, agent, limit - run.assigned)
  if result == 'full' then
    mark_agent(pool, agent)
  elseif agent.mark and not agent.more_awaited then
    redis.call('HDEL', pool .. ':agent:' .. name, 'mark')
  end
  -- The mark of a full agent and the opening of a limit bring it back; while suspects wait, the mark may not.
  local returns = result == 'limited' or (result == 'full' and agent.suspects == 0)
  if not returns then list_room(pool, name, agent.skills) end
  local left = unparking or result == 'more'
  if left or (next_free or 0) > 0 then come_back(served, name, left and 1 or 0, next_free or 0) end
end

for i = 1, #names do
  if is_spent(run, limit) then come_back(missed, names[i], 1, 0) else serve(names[i]) end
end
flush_assigning(pool, run)
-- The agents that the call did not come to are the first in the next one, so that one with a long queue does not delay them.
for i = 1, #served do missed[#missed + 1] = served[i] end
return {run.assigned, now, unpack(missed)}
