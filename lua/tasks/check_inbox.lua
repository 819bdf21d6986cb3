#!lua flags=allow-oom
-- Checks a part of one inbox for entries that belong to no attempt or name no task; with `repair` removes them. Also
-- recreates a missing consumer group and a missing index entry of the agent, so that the inbox is read or recovered.
-- Repairs only if all keys that it would write have the right type.
-- codes: stray-entry | damaged (an entry that names no task) | no-group | unlisted-agent
-- returns: the last checked entry ('': the end), then per finding: entry code repaired (1 or 0)
-- repeat: finds nothing that it has repaired
local pool    = KEYS[1]            -- key: root of the pool's slot
local agent   = ARGV[1]            -- str: agent
local after   = ARGV[2]            -- str: continue after this entry; 0-0 = from the start
local limit   = tonumber(ARGV[3])  -- int: read at most this many; each has up to 16 KiB
local repair  = ARGV[4]            -- str: 1 = repair what is found
local now_arg = ARGV[5]            -- time: test override, microseconds
--@include time: now_us, integer
--@include key: has_type
--@include counter: increment_counters
--@include record: read_task
--@include inbox: remove_entries

local now = now_us(now_arg)
local inbox_key, agents_key, agent_key = pool .. ':inbox:' .. agent, pool .. ':agents', pool .. ':agent:' .. agent
local types, reply, stray_ids = {}, {''}, {}
if not has_type(types, inbox_key, 'stream') or types[inbox_key] == 'none' then return reply end
local repaired = 0
local may_repair = repair == '1' and has_type(types, agent_key, 'hash') and has_type(types, pool .. ':doorbell', 'stream')
  and has_type(types, pool .. ':stats:TOTAL', 'hash')
  and has_type(types, pool .. ':stats:' .. integer(math.floor(now / 60000000)), 'hash')

local function add_finding(entry, code, done)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = entry, code, done and 1 or 0
  if done then repaired = repaired + 1 end
end

local function is_attempt(entry, id)
  local task_key = pool .. ':task:' .. id
  if redis.call('TYPE', task_key)['ok'] ~= 'hash' then return false end
  local task = read_task(task_key, 'state', 'at')
  local held_by, held_entry = string.match(task.at or '', '^(%S+) (%S+)')
  return task.state == 'assigned' and held_by == agent and held_entry == entry
end

local has_group = false
local groups = redis.call('XINFO', 'GROUPS', inbox_key)
for i = 1, #groups do
  for j = 1, #groups[i], 2 do has_group = has_group or (groups[i][j] == 'name' and groups[i][j + 1] == 'workers') end
end
--@rows entries: entry fields
local entries = redis.call('XRANGE', inbox_key, '(' .. after, '+', 'COUNT', limit)
--@rows strays: entry code
local strays = {}
for i = 1, #entries do
  local entry, fields = entries[i].entry, entries[i].fields
  -- Names and values: t g e of a first attempt (6), with a d of a later one (10), with f after an operator's retry (12).
  if fields[1] ~= 't' or (#fields ~= 6 and #fields ~= 10 and #fields ~= 12) then
    strays[#strays + 1] = {entry, 'damaged'}
  elseif not is_attempt(entry, fields[2]) then
    strays[#strays + 1] = {entry, 'stray-entry'}
  end
  reply[1] = entry
end
if #entries < limit then reply[1] = '' end

if not has_group then
  if may_repair then redis.call('XGROUP', 'CREATE', inbox_key, 'workers', '0') end
  add_finding('', 'no-group', may_repair)
end
if has_type(types, agents_key, 'zset') and not redis.call('ZSCORE', agents_key, agent) then
  if may_repair then redis.call('ZADD', agents_key, integer(math.floor(now / 1000)), agent) end
  add_finding('', 'unlisted-agent', may_repair)
end
for i = 1, #strays do
  stray_ids[i] = strays[i].entry
  add_finding(strays[i].entry, strays[i].code, may_repair)
end
if may_repair and #stray_ids > 0 then remove_entries(pool, agent, stray_ids) end
if repaired > 0 then increment_counters(pool, now, {repaired = repaired}) end
return reply
