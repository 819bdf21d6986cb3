#!lua
-- Leaves a directive for an agent of the session until the agent acknowledges it.
-- returns: ok revision, entry | duplicate, the same | fenced value | full what
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms window_ms ops items bytes events event_bytes parts json
local to      = ARGV[3]                      -- str: the agent that gets it
local word    = ARGV[4]                      -- str: the directive, as STOP
local text    = ARGV[5]                      -- str: details, JSON
local most    = tonumber(ARGV[6])            -- int: maximum waiting directives of one agent
local now_arg = ARGV[7]                      -- time: test override, microseconds
--@include workspace: event_value, part_version, open_workspace, close_workspace

local part = 'inbox:' .. to
local inbox_key = scope .. ':inbox:' .. to
local ws, answer = open_workspace(scope, 'direct', caller, limits, {':' .. part}, now_arg)
if not ws then return answer end
local number = part_version(scope, ws, part)
if not number then return {'full', 'parts'} end
if redis.call('XLEN', inbox_key) >= most then return {'full', 'inbox'} end
local entry = redis.call('XADD', inbox_key, '*', 'k', word, 'a', ws.agent, 'd', text)
ws.parts[part] = number + 1
return close_workspace(scope, ws, {to, word, entry, event_value(text, ws.event_bytes)}, {entry})
