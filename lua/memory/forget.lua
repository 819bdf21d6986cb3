#!lua flags=allow-oom
-- Removes the next records of a selection with all their entries, also from the outbox for long-term storage. Leaves
-- records that have changed since.
-- returns: ok, records of the selection that remain to be done, removed, missing, then the ids of changed ones |
--          duplicate, the same | fenced value | occupied value ms
-- repeat: returns duplicate and the first call's result; another, if the op id has named other records
local scope     = KEYS[1]                      -- key: root of the owner's slot
local caller    = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local selection = ARGV[2]                      -- str: id of the selection
local most      = tonumber(ARGV[3])            -- int: number of records, at most 100
local now_arg   = ARGV[4]                      -- time: test override, microseconds
--@include memory: open_memory, close_memory, find_record, remove_record, find_waiting, remove_waiting

local selection_key = scope .. ':forget:' .. selection
local now_ms, reply = open_memory(scope, 'forget', caller, now_arg)
if not now_ms then return reply end
local entries = redis.call('LRANGE', selection_key, 0, most - 1)
local removed, missing, changed = 0, 0, {}
for i = 1, #entries do
  local version, id = string.match(entries[i], '^(%d+) (.*)$')
  --@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
  local tier, header = find_record(scope, id, now_ms)
  if tier and header.version == tonumber(version) then
    remove_record(scope, tier, id, header)
    removed = removed + 1
  else
    --@row waiting: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
    local entry, waiting = find_waiting(scope, id)
    if entry and waiting.version == tonumber(version) then
      removed = removed + remove_waiting(scope, id, entry, now_ms)
    elseif tier or entry then
      changed[#changed + 1] = id
    else
      missing = missing + 1
    end
  end
end
redis.call('LTRIM', selection_key, #entries, -1)
return close_memory(scope, 'forget', caller, {redis.call('LLEN', selection_key), removed, missing, unpack(changed)})
