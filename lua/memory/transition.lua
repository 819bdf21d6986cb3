#!lua flags=allow-oom
-- Moves short-term records to the intermediate tier: those beyond the cap, the oldest first, then those of an age and
-- importance. The others stay until they expire.
-- returns: ok moved, stayed (records of the age that are not important enough), 1 if more may have to move, else 0 |
--          duplicate, the same | fenced value | occupied value ms | full records
-- repeat: returns duplicate and the first call's result; another, if the op id has named other records
local scope   = KEYS[1]                      -- key: root of the owner's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local limits  = cmsgpack.unpack(ARGV[2])[1]  -- row: stm_ms im_ms stm_records im_records bytes
local age_ms  = tonumber(ARGV[3])            -- int: age from which a record moves
local least   = ARGV[4]                      -- str: importance from which it does, a number
local skip    = tonumber(ARGV[5])            -- int: records that an earlier call has found to stay
local limit   = tonumber(ARGV[6])            -- int: look at no more
local now_arg = ARGV[7]                      -- time: test override, microseconds
--@include memory: open_memory, close_memory, read_header, move_record, move_oldest, remove_expired_records

local now_ms, reply = open_memory(scope, 'transition', caller, now_arg)
if not now_ms then return reply end
remove_expired_records(scope, 'stm', now_ms, 20)
remove_expired_records(scope, 'im', now_ms, 20)
local room = limits.im_records - redis.call('HLEN', scope .. ':im:hdr')
-- Superseded records do not count for the cap, and stay until they expire.
local over = redis.call('ZCARD', scope .. ':stm:time') - limits.stm_records

local moved, stayed, looked = 0, 0, 0
local oldest = over > 0 and redis.call('ZRANGE', scope .. ':stm:time', 0, math.min(over, limit) - 1) or {}
-- The deadlines of records of the age end the range, except of those with a retention of their own; these move when
-- they come near their end.
local due_ms = now_ms + math.max(limits.stm_ms - age_ms, 0)
local left = limit - #oldest
local due = left > 0 and redis.call('ZRANGE', scope .. ':stm:exp', '-inf', due_ms, 'BYSCORE', 'LIMIT', skip, left) or {}
local ids = {unpack(oldest)}
for i = 1, #due do ids[#ids + 1] = due[i] end
for i = 1, #ids do
  --@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
  local header = i > #oldest and read_header(scope, 'stm', ids[i])
  local old = header and header.stored <= now_ms - age_ms and header.importance >= tonumber(least)
    and header.superseded == ''
  if i > #oldest and not old then
    stayed = stayed + 1
  elseif moved >= room then
    if moved == 0 then return {'full', 'records'} end
    break
  elseif i > #oldest then
    move_record(scope, 'stm', 'im', ids[i], header, now_ms + limits.im_ms, now_ms)
    moved = moved + 1
  elseif move_oldest(scope, ids[i], now_ms + limits.im_ms, now_ms) then
    moved = moved + 1
  end
end
return close_memory(scope, 'transition', caller, {moved, stayed, #ids == limit and 1 or 0})
