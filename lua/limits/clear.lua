#!lua flags=allow-oom
-- Ends all states of a provider that pools share, because an operator of one of them has cleared it.
-- returns: 1 if there were any, else 0
-- repeat: ends those that were told in between, too
local scope = KEYS[1]  -- key: root of the scope of the limit
local name  = ARGV[1]  -- str: limit
--@include blocked: clear_blocked

local any = redis.call('EXISTS', scope .. ':blocked:' .. name)
clear_blocked(scope, name, 0)
return any
