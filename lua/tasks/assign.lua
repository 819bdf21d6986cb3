#!lua flags=allow-oom
-- Moves the best ready tasks of an agent's queues into its inbox: as many as its workers' free slots, its limits,
-- `limit` and 256 KiB of envelopes allow. A task that is assigned has taken its slots of the limits. After the agent got a
-- skill, each call also returns up to 500 parked tasks to its queue. An agent that is not marked as full is listed in
-- `room:S` of its skills.
-- returns: assigned, left (1: tasks and room, or tasks to unpark, remain: call again), next_free_us (0: no limit holds tasks back), now_us
-- repeat: assigns further tasks
local pool    = KEYS[1]             -- key: root of the pool's slot
local agent   = ARGV[1]             -- str: agent
local limit   = tonumber(ARGV[2])   -- int: at most this many (500)
local now_arg = ARGV[3]             -- time: test override, microseconds
--@include time: now_us
--@include parked: unpark
--@include registry: list_room
--@include assigning: start_assigning, read_agent, fill_inbox, mark_agent, flush_assigning
--@rare: is_active, agent_blocked, any_session_stopped, stopped_scope, live_workers, unpark, live_versions, any_refuses
--@rare: refusing_scope, parse_version_scope, list_version_scope, unlist_scope, awaited_tasks, awaited_first, mark_awaited
--@rare: limit_room, take_slots, put_suspects, notify_of_suspects, end_task, append_event, forgiven_failures
--@rare: pass_lane, flush_turns, note_activity

local now = now_us(now_arg)
local run = start_assigning(pool, now)
local facts = read_agent(pool, run, agent)
if not facts then return {0, 0, 0, now} end
local unparking = facts.unpark and unpark(pool, agent, facts.skilled, facts.unpark, 500) and 1 or 0
local result, next_free = fill_inbox(pool, run, facts, limit)
if result == 'full' then mark_agent(pool, facts) end
flush_assigning(pool, run)
-- The mark of a full agent and the opening of a limit bring it back; while suspects wait, the mark may not.
local returns = result == 'limited' or (result == 'full' and facts.suspects == 0)
if not returns then list_room(pool, agent, facts.skills) end
return {run.assigned, result == 'more' and 1 or unparking, next_free or 0, now}
