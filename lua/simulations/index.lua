#!lua
-- Lists states of agents in the indices of a simulation, or removes them. The change with the highest number of a state
-- counts, so that calls may arrive late, twice, and in any order.
-- returns: number of states that changed
-- repeat: changes nothing
local scope   = KEYS[1]                   -- key: root of the simulation's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: agent state number listed step type cell x y deadline
local ttl_ms  = tonumber(ARGV[2])         -- int: shortest lifetime of a key after a change
local now_arg = ARGV[3]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include key: extend_life

local kept_ms = 3600000
local now_ms = math.floor(now_us(now_arg) / 1000)
local agents_key, states_key = scope .. ':agents', scope .. ':states'
local of_key, gone_key, counts_key = scope .. ':of', scope .. ':gone', scope .. ':counts'

-- Counts a state of an agent, of a type unless that is empty; an agent leaves the index with its last state. An agent
-- whose count is lost stays, because nothing tells how many states it has.
local function count(agent, type, by)
  local field, members_key = agent, agents_key
  if type ~= '' then field, members_key = agent .. ' ' .. type, scope .. ':type:' .. type .. ':agents' end
  local counted = redis.call('HEXISTS', counts_key, field) == 1
  if by > 0 and (counted or not redis.call('ZSCORE', members_key, agent)) then
    redis.call('HINCRBY', counts_key, field, 1)
  elseif by < 0 and counted and redis.call('HINCRBY', counts_key, field, -1) <= 0 then
    redis.call('HDEL', counts_key, field)
    redis.call('ZREM', members_key, agent)
  end
end

-- Removes a state from the indices of its type and cell, except those that it stays in.
local function unlist(member, listing, type, cell)
  --@row listing: number step type cell x y
  local type_key, cell_key = scope .. ':type:' .. listing.type .. ':states', scope .. ':place:' .. listing.cell
  if listing.type ~= '' and listing.type ~= type then redis.call('ZREM', type_key, member) end
  if listing.cell ~= '' and listing.cell ~= cell then redis.call('SREM', cell_key, member) end
end

local changed = 0
for i = 1, #rows do
  local row = rows[i]
  local member = row.agent .. ' ' .. row.state
  local stored = redis.call('HGET', of_key, member)
  --@row listing: number step type cell x y
  local listing = stored and cmsgpack.unpack(stored)
  if not listing or listing.number < row.number then
    changed = changed + 1
    local life_ms = math.max(row.deadline - now_ms, ttl_ms)
    local old_type = listing and listing.step ~= '' and listing.type
    local type = row.listed == 1 and row.type or ''
    if row.listed == 1 and not old_type then count(row.agent, '', 1) end
    if type ~= '' and type ~= old_type then count(row.agent, type, 1) end
    if old_type and old_type ~= '' and old_type ~= type then count(row.agent, old_type, -1) end
    if old_type and row.listed == 0 then count(row.agent, '', -1) end
    if row.listed == 1 then
      local score = integer(row.step)
      local keys = {agents_key, states_key, of_key, counts_key}
      redis.call('HSET', of_key, member, cmsgpack.pack({row.number, row.step, row.type, row.cell, row.x, row.y}))
      redis.call('ZADD', states_key, score, member)
      redis.call('ZADD', agents_key, 'GT', score, row.agent)
      if row.type ~= '' then
        local type_key = scope .. ':type:' .. row.type .. ':states'
        local members_key = scope .. ':type:' .. row.type .. ':agents'
        redis.call('ZADD', type_key, score, member)
        redis.call('ZADD', members_key, 'GT', score, row.agent)
        keys[#keys + 1] = type_key
        keys[#keys + 1] = members_key
      end
      if row.cell ~= '' then
        local cell_key = scope .. ':place:' .. row.cell
        redis.call('SADD', cell_key, member)
        keys[#keys + 1] = cell_key
      end
      if listing then unlist(member, listing, row.type, row.cell) end
      redis.call('ZREM', gone_key, member)
      for j = 1, #keys do extend_life(keys[j], life_ms) end
    else
      -- The number stays for an hour, so that an older change that arrives late does not list the state again.
      redis.call('HSET', of_key, member, cmsgpack.pack({row.number, '', '', '', 0, 0}))
      redis.call('ZADD', gone_key, integer(now_ms), member)
      redis.call('ZREM', states_key, member)
      if listing then unlist(member, listing, '', '') end
      extend_life(of_key, life_ms)
      extend_life(gone_key, life_ms)
    end
  end
end
local old = redis.call('ZRANGE', gone_key, '-inf', integer(now_ms - kept_ms), 'BYSCORE', 'LIMIT', 0, 2 * #rows)
if #old > 0 then
  redis.call('HDEL', of_key, unpack(old))
  redis.call('ZREM', gone_key, unpack(old))
end
return changed
