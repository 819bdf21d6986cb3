#!lua flags=allow-oom
-- Accepts a control command: stores its nonce, changes the desired state, then appends it to the control stream; all or
-- nothing. Readers that see the command also see its effect, because the desired state changes first.
-- changes: slot, its mark ('' empties the slot; the slot `epoch` is incremented), the rate of a limit, and the definition of a
-- budget. The share of a key lets its waiting tasks be looked at, because more of them may run.
-- status: accepted entry | replayed entry | expired | early | stale | busy (too many commands; a stop always passes) |
-- ended (the restore that gives it has ended, or a later run has replaced it) | held (a pause of the same target ends later
-- or at the same time; nothing changed) | below unit spent (of the budget more is spent) | used (attempts hold amounts of the
-- budget, or tasks wait for it) | damaged (keys of the budget are of another type, or hold what no program stores)
-- A record of what was done without a command (no change, no job) has no effect here, and takes half of the minute at most.
-- Records have streams of their own, so that they remove no commands and no process that follows commands reads them.
-- repeat: with the same token returns accepted and the first entry, with another one replayed; changes nothing
local pool         = KEYS[1]                   -- key: root of the pool's slot
local id           = ARGV[1]                   -- str: command
local packed       = ARGV[2]                   -- str: command as it is signed
local signature    = ARGV[3]                   -- str: 64 letters, or empty
local changes      = cmsgpack.unpack(ARGV[4])  -- rows: slot mark starts window_us budget
local job          = ARGV[5]                   -- str: 1 = a job for the supervisor
local sealed       = ARGV[6]                   -- str: 1 = signatures are verified: ended commands stay until then
local issued_ms    = tonumber(ARGV[7])         -- int: time of issue
local not_after_ms = tonumber(ARGV[8])         -- int: accepted until this time
local epoch        = tonumber(ARGV[9])         -- int: epoch of the pool when it was issued
local per_minute   = tonumber(ARGV[10])        -- int: at most this many commands
local token        = ARGV[11]                  -- str: identifies the sender's call and its repeats
local restore      = ARGV[12]                  -- str: mark of the restore that gives it; empty: none does
local now_arg      = ARGV[13]                  -- time: test override, microseconds
--@include time: now_us, integer
--@include key: has_type
--@include notify: notify_supervisor
--@include desired: is_active, is_of_envelope, held_until, count_desired, desired_number, raise_seq
--@include restoring: goes_on
--@include limit: set_limit
--@include blocked: clear_blocked
--@include share: wake_share
--@include budget: start_budgets, refuses_budget, set_budget, in_use, delete_budget

local skew_ms, remember_s = 5000, 3600
local now = now_us(now_arg)
local now_ms = math.floor(now / 1000)
local desired_key = pool .. ':desired'
local rate_key = pool .. ':control:' .. integer(math.floor(now_ms / 60000))

local is_record = #changes == 0 and job ~= '1'
local stream_key, refused_key, nonce_key, kept = pool .. ':control', pool .. ':control:refused', pool .. ':nonce:' .. id, 10000
if is_record then
  -- Clients write records. With a nonce of a command they could make it look like a repeat.
  stream_key, refused_key, kept = pool .. ':control:records', pool .. ':control:records:refused', 5000
  nonce_key = pool .. ':control:records:nonce:' .. id
end

-- Clients may write the count. One that is no number counts as none: it must keep no stop out.
local function count_of_minute()
  if not has_type({}, rate_key, 'string') then return 0 end
  local count = tonumber(string.match(redis.call('GET', rate_key) or '', '^%d+$') or 0)
  return count < 1e15 and count or 0
end
local count = count_of_minute()

local function judge()
  if now_ms > not_after_ms then return 'expired' end
  if issued_ms > now_ms + skew_ms then return 'early' end
  if epoch < desired_number(desired_key, 'epoch') then return 'stale' end
  for i = 1, #changes do
    if string.sub(changes[i].slot, 1, 5) == 'stop:' and changes[i].mark ~= '' then return 'accepted' end
  end
  local room = is_record and math.ceil(per_minute / 2) or per_minute
  if count >= room then return 'busy' end
  return 'accepted'
end

if restore ~= '' and not goes_on(pool, restore) then return {'ended', ''} end
local seen = redis.call('GET', nonce_key)
local status, entry
if seen then
  local owner
  entry, owner = string.match(seen, '^(%S+) (.*)$')
  status = 'replayed'
  if owner == token then return {'accepted', entry} end
else
  status = judge()
end
-- A program may not shorten the pause of another one; a command that clears the slot ends it.
if status == 'accepted' then
  for i = 1, #changes do
    local slot = changes[i].slot
    if string.sub(slot, 1, 5) == 'hold:' and changes[i].mark ~= '' then
      local held_ms = held_until(pool, slot, now_ms)
      if held_ms > 0 and held_ms >= tonumber(string.match(packed, '"until_ms":(%d+)') or 0) then return {'held', ''} end
    end
  end
end
local known = start_budgets(now)
for i = 1, status == 'accepted' and #changes or 0 do
  local name, definition = string.match(changes[i].slot, '^budget:(.*)$'), changes[i].budget
  if name and not definition then
    if in_use(pool, name) then status = 'used' end
  elseif name then
    local refusal, detail = refuses_budget(pool, known, name, definition)
    if refusal then status, entry = refusal, detail end
  end
end
if status ~= 'accepted' then
  redis.call('XADD', refused_key, 'MAXLEN', '~', 1000, '*', 'c', packed, 's', signature, 'r', status)
  return {status, entry or ''}
end

redis.call('SET', rate_key, integer(count + 1), 'EX', 120)
local stored = string.format('%-64s', signature) .. packed
local seq = (#changes > 0 or job == '1') and raise_seq(pool, now_ms)
for i = 1, #changes do
  local slot, mark = changes[i].slot, changes[i].mark
  local was = is_active(pool, slot)
  local session = is_of_envelope(slot)
  local limit = string.match(slot, '^limit:(.*)$')
  if slot ~= 'epoch' then redis.call('HSET', pool .. ':desired:revisions', slot, seq) end
  if slot == 'epoch' then
    redis.call('HSET', desired_key, 'epoch', integer(math.max(epoch, desired_number(desired_key, 'epoch')) + 1))
  elseif mark ~= '' then
    redis.call('HSET', desired_key, slot, '1' .. mark .. stored)
    if session and not was then count_desired(pool, 'sessions', 1) end
    if limit then set_limit(pool, limit, changes[i].starts, changes[i].window_us) end
  else
    if sealed == '1' then
      redis.call('HSET', desired_key, slot, '0-' .. stored)
    else
      redis.call('HDEL', desired_key, slot)
    end
    if session and was then count_desired(pool, 'sessions', -1) end
    if limit then set_limit(pool, limit) end
    local provider = string.match(slot, '^hold:limit:(.*)$')
    if provider then clear_blocked(pool, provider, now_ms) end
  end
  wake_share(pool, slot)
  local name = string.match(slot, '^budget:(.*)$')
  -- The desired state keeps no budgets, of which there may be many: `budget:B` has the limits.
  if name and changes[i].budget then
    set_budget(pool, known, name, changes[i].budget)
  elseif name then
    delete_budget(pool, name)
  end
end
if job == '1' then redis.call('HSET', desired_key, 'do:' .. id, '1-' .. stored) end
-- A command is active also when the stream cannot be written, because all readers poll the state.
entry = integer(now_ms) .. '-0'
if has_type({}, stream_key, 'stream') then
  entry = redis.call('XADD', stream_key, 'MAXLEN', '~', kept, '*', 'c', packed, 's', signature)
end
redis.call('SET', nonce_key, entry .. ' ' .. token, 'EX', remember_s + math.ceil((not_after_ms - now_ms) / 1000))
if #changes > 0 then notify_supervisor(pool, 'agents') end
return {'accepted', entry}
