#!lua flags=no-writes
-- Returns up to `limit` log entries numbered above `after`, oldest first; trimmed entries are skipped.
-- returns: entries
-- repeat: reads again
local scope = KEYS[1]            -- key: root of the session's slot
local name  = ARGV[1]            -- str: name of the log, encoded
local after = tonumber(ARGV[2])  -- int: number of the last known entry
local limit = tonumber(ARGV[3])  -- int: at most this many

local log_key = scope .. ':ws:log:' .. name
local last = tonumber(redis.call('HGET', scope .. ':ws:parts', 'ws:log:' .. name) or 0)
local first = last - redis.call('LLEN', log_key) + 1
local from = math.max(0, after + 1 - first)
return redis.call('LRANGE', log_key, from, from + limit - 1)
