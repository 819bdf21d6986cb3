#!lua
-- Appends items to a log of a session; drops the oldest items beyond the cap.
-- returns: ok revision, number of the last item, dropped items | duplicate, the same | fenced value |
--          occupied value ms | full what
-- repeat: returns duplicate and the first call's result
local scope   = KEYS[1]                      -- key: root of the session's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: ttl_ms life_ms window_ms ops items bytes events event_bytes parts json
local name    = ARGV[3]                      -- str: name of the log, encoded
local rows    = cmsgpack.unpack(ARGV[4])     -- rows: text
local cap     = tonumber(ARGV[5])            -- int: maximum items of the log, at least those appended
local now_arg = ARGV[6]                      -- time: test override, microseconds
--@include workspace: open_workspace, close_workspace, extend_log

local ws, answer = open_workspace(scope, 'append', caller, limits, {':ws:log:' .. name}, now_arg)
if not ws then return answer end
local texts = {}
for i = 1, #rows do texts[i] = rows[i].text end
local last, dropped, change = extend_log(scope, ws, name, texts, cap)
if not last then return {'full', dropped} end
return close_workspace(scope, ws, change, {last, dropped})
