#!lua flags=allow-oom
-- Forgets the revisions of slots whose commands ended long ago, and notes the highest of them.
-- returns: number of forgotten revisions
-- repeat: forgets nothing
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: slot revision
--@include time: integer
--@include desired: desired_number

local desired_key, revisions_key = pool .. ':desired', pool .. ':desired:revisions'
local pruned, forgotten = desired_number(revisions_key, 'pruned'), 0
for i = 1, #rows do
  local slot, revision = rows[i].slot, rows[i].revision
  if desired_number(revisions_key, slot) == revision and redis.call('HEXISTS', desired_key, slot) == 0 then
    redis.call('HDEL', revisions_key, slot)
    pruned = math.max(pruned, revision)
    forgotten = forgotten + 1
  end
end
if forgotten > 0 then redis.call('HSET', revisions_key, 'pruned', integer(pruned)) end
return forgotten
