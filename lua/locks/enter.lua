#!lua flags=allow-oom
-- Asks whether the exclusive lock of a scope admits changes of other owners, or registers the caller as a waiter.
-- returns: free
--          held, value of the holder, ms until it lapses
--          awaited, value of a holder that waits for the caller's task; waiting would deadlock
-- repeat: asks again; a waiter that was admitted leaves with `drop`, which passes its turn on
local scope   = KEYS[1]            -- key: root of the scope's slot
local task    = ARGV[1]            -- str: task of the caller; empty: none
local nonce   = ARGV[2]            -- str: random, identifies this wait
local wait_ms = tonumber(ARGV[3])  -- int: the caller waits this long
local listens = ARGV[4]            -- str: 1 = the caller listens for the hint of its turn
local now_arg = ARGV[5]            -- time: test override, microseconds
--@include time: now_us
--@include lock: exclusive_holder, wait_for

local lock_key = scope .. ':exec'
local awaited_key = lock_key .. ':awaited'
local holder = exclusive_holder(scope)
if not holder then return {'free', ''} end
if task ~= '' and redis.call('SISMEMBER', awaited_key, task) == 1 then return {'awaited', holder} end
if wait_ms > 0 then wait_for(lock_key, nonce, now_us(now_arg), wait_ms, listens) end
return {'held', holder, redis.call('PTTL', lock_key)}
