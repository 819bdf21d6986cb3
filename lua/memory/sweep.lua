#!lua flags=allow-oom
-- Checks up to 200 members of one key of a tier against the headers of their records: removes records that have expired
-- or lost their content, entries without a record, and gives records back the entries that they lack.
-- returns: ok, number of expired records, of orphan entries, of damaged records, of records with restored entries |
--          duplicate, the same | fenced value | occupied value ms
-- repeat: returns duplicate and the first call's result; another, if the op id has named other records
local scope   = KEYS[1]                      -- key: root of the owner's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local tier    = ARGV[2]                      -- str: stm or im
local part    = ARGV[3]                      -- str: key of the tier, as `time` or `kind:K`
local rows    = cmsgpack.unpack(ARGV[4])     -- rows: id
local now_arg = ARGV[5]                      -- time: test override, microseconds
--@include memory: open_memory, close_memory, read_header, remove_record, restore_entries, remove_orphans_beside

local now_ms, reply = open_memory(scope, 'sweep', caller, now_arg)
if not now_ms then return reply end
local stem_key = scope .. ':' .. tier
local part_key = stem_key .. ':' .. part
local is_hash = part == 'rec' or part == 'hdr' or part == 'acc'
local expired, orphans, damaged, restored = 0, 0, 0, 0

-- Returns whether an index lists a record by its header.
--@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
local function belongs(header)
  if part == 'exp' or is_hash or part == 'subj:' .. header.subject then return true end
  return header.superseded == '' and (part == 'time' or part == 'imp' or part == 'kind:' .. header.kind
    or part == 'act:' .. header.action or part == 'cell:' .. header.cell)
end

for i = 1, #rows do
  local id = rows[i].id
  --@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
  local header = read_header(scope, tier, id)
  if header and header.deadline <= now_ms then
    remove_record(scope, tier, id, header)
    expired = expired + 1
  elseif header and redis.call('HEXISTS', stem_key .. ':rec', id) == 0 then
    remove_record(scope, tier, id, header)
    damaged = damaged + 1
  elseif not header or not belongs(header) then
    orphans = orphans + redis.call(is_hash and 'HDEL' or 'ZREM', part_key, id)
  elseif part == 'hdr' then
    restored = restored + restore_entries(scope, tier, id, header, now_ms)
    -- No list has the names of the indices of kinds, actions, cells and people; the records lead to them.
    orphans = orphans + remove_orphans_beside(scope, tier, id, header)
  end
end
return close_memory(scope, 'sweep', caller, {expired, orphans, damaged, restored})
