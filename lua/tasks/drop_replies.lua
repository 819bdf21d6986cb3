#!lua flags=allow-oom
-- Removes entries from the reply streams of clients, because they hold results of deleted tasks. Clients that still wait
-- for other results of an entry read those tasks.
-- returns: number of removed entries
-- repeat: removes nothing
local pool = KEYS[1]                    -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])   -- rows: client entry

local removed = 0
for i = 1, #rows do removed = removed + redis.call('XDEL', pool .. ':replies:' .. rows[i].client, rows[i].entry) end
return removed
