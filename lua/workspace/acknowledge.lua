#!lua flags=allow-oom
-- Removes directives that an agent has carried out.
-- returns: ok revision, number of removed directives | duplicate, the same | fenced value
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms window_ms ops items bytes events event_bytes parts json
local to      = ARGV[3]                      -- str: the agent that got them
local rows    = cmsgpack.unpack(ARGV[4])     -- rows: entry
local now_arg = ARGV[5]                      -- time: test override, microseconds
--@include workspace: open_workspace, close_workspace

local inbox_key = scope .. ':inbox:' .. to
local ws, answer = open_workspace(scope, 'acknowledge', caller, limits, {':inbox:' .. to}, now_arg)
if not ws then return answer end
local entries = {}
for i = 1, #rows do entries[i] = rows[i].entry end
local removed = redis.call('XDEL', inbox_key, unpack(entries))
local change = false
if removed > 0 then change = {to, unpack(entries)} end
return close_workspace(scope, ws, change, {removed})
