-- Leases: how long a worker may be silent before another one takes its entries. Workers of one agent may differ.

-- Returns the leases of an agent's workers by name, the shortest one and the longest one in ms; `default` is that of a
-- worker without one.
local function read_leases(pool, agent, default)
  local leases_key = pool .. ':leases:' .. agent
  local names, values = redis.call('HKEYS', leases_key), redis.call('HVALS', leases_key)
  local leases, shortest, longest = {}, default, default
  for i = 1, #names do
    local lease = tonumber(values[i])
    leases[names[i]] = lease
    shortest, longest = math.min(shortest, lease), math.max(longest, lease)
  end
  return leases, shortest, longest
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
