-- Leases: how long a worker may be silent before another one takes its entries. Workers of one agent may differ.

-- Returns a time in ms that a script stored; `default` for a missing one, and for what no script stores.
local function stored_ms(text, default)
  local found = tonumber(string.match(text or '', '^%d+$'))
  return found and found < 1e15 and found or default
end

-- Returns the leases of an agent's workers by name, the shortest one and the longest one in ms; `default` is that of a
-- worker without one. No worker registers less than a second: with such a damaged lease it would lose tasks that it runs.
local function read_leases(pool, agent, default)
  local leases_key = pool .. ':leases:' .. agent
  local names, values = redis.call('HKEYS', leases_key), redis.call('HVALS', leases_key)
  local leases, shortest, longest = {}, default, default
  for i = 1, #names do
    local lease = stored_ms(values[i], default)
    if lease < 1000 then lease = default end
    leases[names[i]] = lease
    shortest, longest = math.min(shortest, lease), math.max(longest, lease)
  end
  return leases, shortest, longest
end

-- Returns whether workers may have been unable to renew, because no script looked at the inbox for longer than `gap_ms`
-- since `looked` (protocol rule 10). Programs skip an inbox without entries, and no entry had a holder before it was added.
local function is_after_gap(inbox_key, now_ms, looked, gap_ms)
  if now_ms - looked <= gap_ms then return false end
  --@rows oldest: entry
  local oldest = redis.call('XRANGE', inbox_key, '-', '+', 'COUNT', 1)
  if not oldest[1] then return false end
  local added = tonumber(string.match(oldest[1].entry, '^%d+'))
  -- After a step of the clock back its id may lie in the future; then it says nothing.
  return added > now_ms or now_ms - added > gap_ms
end

-- Lists up to `limit` entries whose worker was silent for its lease and `slack(lease)` ms; each with its worker.
local function expired_entries(inbox_key, leases, shortest, longest, slack, limit)
  local found, from, page = {}, '-', limit
  -- With one lease the first page is the answer.
  if shortest ~= longest then page = 500 end
  for _ = 1, 10 do
    --@rows idle: entry worker idle_ms
    local idle = redis.call('XPENDING', inbox_key, 'workers', 'IDLE', shortest + slack(shortest), from, '+', page)
    for i = 1, #idle do
      local lease = leases[idle[i].worker] or longest
      if #found < limit and idle[i].idle_ms >= lease + slack(lease) then found[#found + 1] = {idle[i].entry, idle[i].worker} end
    end
    if #idle < page or #found >= limit or shortest == longest then break end
    from = '(' .. idle[#idle].entry
  end
  return found
end
