#!lua flags=allow-oom
-- Removes notes about indices of simulations that have followed, unless a newer change of the record has replaced them.
-- It changes no record, so that it takes no caller row.
-- returns: number of notes that are left
-- repeat: removes nothing more
local scope = KEYS[1]                   -- key: root of the owner's slot
local rows  = cmsgpack.unpack(ARGV[1])  -- rows: note number

local pending_key = scope .. ':sim:pending'
for i = 1, #rows do
  --@row stored: number
  local packed = redis.call('HGET', pending_key, rows[i].note)
  local stored = packed and cmsgpack.unpack(packed)
  if stored and stored.number == rows[i].number then redis.call('HDEL', pending_key, rows[i].note) end
end
return math.max(redis.call('HLEN', pending_key) - 1, 0)
