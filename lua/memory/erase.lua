#!lua flags=allow-oom
-- Removes up to `most` records about a person with all their entries, and refuses new ones for a time.
-- returns: ok, removed records, records about the person that remain | duplicate, the same | fenced value |
--          occupied value ms
-- repeat: returns duplicate and the first call's result; another, if the op id has named other records
local scope   = KEYS[1]                      -- key: root of the owner's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local subject = ARGV[2]                      -- str: the person, encoded
local for_ms  = tonumber(ARGV[3])            -- int: how long new records about the person are refused
local most    = tonumber(ARGV[4])            -- int: number of records, at most 500
local now_arg = ARGV[5]                      -- time: test override, microseconds
--@include erased: mark_erased
--@include memory: open_memory, close_memory, read_header, remove_record
--@include vectors: clear_vector_log

local now_ms, reply = open_memory(scope, 'erase', caller, now_arg)
if not now_ms then return reply end
mark_erased(scope, redis.sha1hex(subject), now_ms, for_ms)
local removed, left = 0, 0
for _, tier in ipairs({'stm', 'im'}) do
  local subject_key = scope .. ':' .. tier .. ':subj:' .. subject
  local ids = most > removed and redis.call('ZRANGE', subject_key, 0, most - removed - 1) or {}
  for i = 1, #ids do
    --@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
    local header = read_header(scope, tier, ids[i])
    if header and header.subject == subject then
      remove_record(scope, tier, ids[i], header)
      removed = removed + 1
    else
      redis.call('ZREM', subject_key, ids[i])
    end
  end
  left = left + redis.call('ZCARD', subject_key)
end
if removed > 0 then clear_vector_log(scope, now_ms) end
return close_memory(scope, 'erase', caller, {removed, left})
