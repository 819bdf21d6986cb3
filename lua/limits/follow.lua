#!lua flags=allow-oom
-- Copies what keeps calls from a provider that pools share, from the scope of its limit into the pool, so that tasks of agents
-- that have the limit wait. Lists the provider.
-- status: changed | same (nothing was written)
-- returns: status
-- repeat: returns same
local pool    = KEYS[1]                   -- key: root of the pool's slot
local name    = ARGV[1]                   -- str: limit
local shown   = ARGV[2]                   -- str: its limits as they are listed; empty: as they are
local rows    = cmsgpack.unpack(ARGV[3])  -- rows: field stored
local cleared = ARGV[4]                   -- str: `cleared` of the command that has been carried out; empty: none
local now_arg = ARGV[5]                   -- time: test override, microseconds
--@include time: now_us
--@include notify: notify_supervisor
--@include blocked: keep_blocked
--@include provider: list_provider

local states = {'throttled', 'quota', 'broken', 'trial'}
local now_ms = math.floor(now_us(now_arg) / 1000)
local blocked_key = pool .. ':blocked:' .. name
local present = redis.call('HMGET', blocked_key, 'throttled', 'quota', 'broken', 'trial', 'cleared')
local listed = shown == '' or redis.call('HGET', pool .. ':providers', name) == shown
local found = {throttled = present.throttled, quota = present.quota, broken = present.broken, trial = present.trial}
local wanted = {}
for i = 1, math.min(#rows, #states) do wanted[rows[i].field] = rows[i].stored end
-- A start of this pool is to try the provider.
if wanted.broken and not wanted.trial and found.trial and string.match(found.trial, '^%d+ $') then
  wanted.trial = found.trial
end

local set, gone = {}, {}
for i = 1, #states do
  local state = states[i]
  if wanted[state] and wanted[state] ~= found[state] then
    set[#set + 1], set[#set + 2] = state, wanted[state]
  elseif found[state] and not wanted[state] then
    gone[#gone + 1] = state
  end
end
if cleared ~= '' and present.cleared == cleared then gone[#gone + 1] = 'cleared' end
if not listed then
  list_provider(pool, name, shown)
  notify_supervisor(pool, 'providers')
end
if #set == 0 and #gone == 0 then return listed and 'same' or 'changed' end

if #set > 0 then redis.call('HSET', blocked_key, unpack(set)) end
if #gone > 0 then redis.call('HDEL', blocked_key, unpack(gone)) end
if #set > 0 or wanted.throttled or wanted.quota or wanted.broken then keep_blocked(blocked_key, now_ms) end
notify_supervisor(pool, 'agents')
return 'changed'
