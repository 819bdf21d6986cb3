#!lua flags=allow-oom
-- Removes the oldest entries from the stream of ended tasks.
-- returns: number of removed entries
-- repeat: removes nothing
local pool   = KEYS[1]  -- key: root of the pool's slot
local oldest = ARGV[1]  -- str: first entry that stays

return redis.call('XTRIM', pool .. ':events', 'MINID', oldest)
