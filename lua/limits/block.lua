#!lua flags=allow-oom
-- Keeps all calls from a provider, and all starts of agents that have the limit, until a time, which a shorter one does not
-- shorten.
-- returns: the end of the state in ms, 0: until it is cleared; -1: that time has passed, nothing changed; then the ms until the
-- end, 0: none
-- repeat: returns the same end; of a time from now, moves it on by the time between the calls
local pool     = KEYS[1]            -- key: root of the pool's slot; of a shared provider, of the scope of its limit
local name     = ARGV[1]            -- str: limit
local state    = ARGV[2]            -- str: throttled | quota
local for_ms   = tonumber(ARGV[3])  -- int: time from now; 0: `until_ms` has the end
local until_ms = tonumber(ARGV[4])  -- int: the end; 0 without `for_ms`: until it is cleared
local told     = ARGV[5]            -- str: who tells it; shown to operators, with the reason behind a line feed
local now_arg  = ARGV[6]            -- time: test override, microseconds
--@include time: now_us
--@include blocked: put_blocked, longest_block_ms

local now_ms = math.floor(now_us(now_arg) / 1000)
local ends = math.huge
if for_ms > 0 then ends = now_ms + for_ms elseif until_ms > 0 then ends = until_ms end
if ends <= now_ms then return {-1, 0} end
if ends < math.huge then ends = math.min(ends, now_ms + longest_block_ms) end
ends = put_blocked(pool, name, state, ends, now_ms, told)
if ends == math.huge then return {0, 0} end
return {ends, ends - now_ms}
