#!lua flags=allow-oom
-- Writes back what Redis has lost of the desired state, as one of its readers knows it. Keeps a slot that Redis has in
-- the same revision or a newer one.
-- rows: slot, revision, value ('': its command has ended); of a limit its rate
-- returns: number of written slots; -1: the restore of a backup that gives them has ended, or a later run has replaced it
-- repeat: writes nothing
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: slot revision value starts window_us
local sealed  = ARGV[2]                   -- str: 1 = the reader has verified the signatures
local epoch   = tonumber(ARGV[3])         -- int: epoch that the reader knows
local pruned  = tonumber(ARGV[4])         -- int: highest revision that the reader knows to be pruned
local mark    = ARGV[5]                   -- str: mark of the restore of a backup; empty: a reader writes back
local now_arg = ARGV[6]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include notify: notify_supervisor
--@include desired: is_active, is_of_envelope, count_desired, desired_number, check_revisions, raise_seq
--@include limit: set_limit
--@include share: wake_share
--@include restoring: goes_on

if mark ~= '' and not goes_on(pool, mark) then return -1 end
local desired_key, revisions_key = pool .. ':desired', pool .. ':desired:revisions'
local now_ms = math.floor(now_us(now_arg) / 1000)
-- A worker without the right to give commands leaves it to a supervisor.
if not redis.acl_check_cmd('HSET', desired_key, 'seq', '1') then return 0 end
check_revisions(pool)
local newest, written = now_ms, 0
local floor = desired_number(revisions_key, 'pruned')

local function restore(row)
  local slot, revision, value = row.slot, row.revision, row.value
  local stored = desired_number(revisions_key, slot)
  if revision <= stored or (stored == 0 and revision <= floor) then return end
  local was = is_active(pool, slot)
  if value ~= '' then
    redis.call('HSET', desired_key, slot, value)
    -- The control stream may have lost the command, so the supervisor could not verify it again.
    if sealed == '1' then redis.call('HSET', desired_key, 'verified:' .. slot, value) end
  else
    redis.call('HDEL', desired_key, slot, 'verified:' .. slot)
  end
  local is = is_active(pool, slot)
  if is_of_envelope(slot) and was ~= is then count_desired(pool, 'sessions', is and 1 or -1) end
  local limit = string.match(slot, '^limit:(.*)$')
  if limit then set_limit(pool, limit, row.starts, row.window_us) end
  wake_share(pool, slot)
  redis.call('HSET', revisions_key, slot, integer(revision))
  newest = math.max(newest, revision)
  written = written + 1
end

for i = 1, #rows do restore(rows[i]) end
if epoch > desired_number(desired_key, 'epoch') then
  redis.call('HSET', desired_key, 'epoch', integer(epoch))
  written = written + 1
end
if pruned > floor then redis.call('HSET', revisions_key, 'pruned', integer(pruned)) end
if written > 0 then
  raise_seq(pool, newest)
  notify_supervisor(pool, 'agents')
end
return written
