#!lua flags=allow-oom
-- Removes records about a person from the outbox for long-term storage. Looks at up to `most` entries.
-- returns: ok, removed records, last entry that was read ('': no more follow) | duplicate, the same | fenced value |
--          occupied value ms
-- repeat: returns duplicate and the first call's result; another, if the op id has named other records
local scope   = KEYS[1]                      -- key: root of the owner's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local subject = ARGV[2]                      -- str: the person, encoded
local after   = ARGV[3]                      -- str: last entry that an earlier call has read; 0-0 at first
local most    = tonumber(ARGV[4])            -- int: number of entries, at most 100
local now_arg = ARGV[5]                      -- time: test override, microseconds
--@include memory: open_memory, close_memory, remove_waiting

local now_ms, reply = open_memory(scope, 'erase_outbox', caller, now_arg)
if not now_ms then return reply end
local entries = redis.call('XRANGE', scope .. ':ltm:out', '(' .. after, '+', 'COUNT', most)
local removed, last = 0, ''
for i = 1, #entries do
  local entry, fields = entries[i][1], entries[i][2]
  local id, packed
  for at = 1, #fields, 2 do
    if fields[at] == 'i' then id = fields[at + 1] end
    if fields[at] == 'h' then packed = fields[at + 1] end
  end
  --@row header: version score importance deadline stored kind action cell subject
  local header = cmsgpack.unpack(packed)
  if header.subject == subject then removed = removed + remove_waiting(scope, id, entry, now_ms) end
  last = entry
end
return close_memory(scope, 'erase_outbox', caller, {removed, #entries == most and last or ''})
