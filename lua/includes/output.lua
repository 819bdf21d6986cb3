-- Output streams of tasks.
--@include notify: publish_hint

-- Appends a state change to the output stream of a task and aligns the lifetimes. Called after the change is stored,
-- for tasks that emit or are followed (those with the field `out`).
local function append_event(pool, id, generation, attempt, kind, text)
  local out_key = pool .. ':out:' .. id
  -- The maximum of the setting `output.max_chunks`; emit trims to its value.
  local entry = redis.call('XADD', out_key, 'MAXLEN', '~', 10000, '*', 'k', kind, 'g', generation, 'a', attempt,
    'd', text)
  redis.call('EXPIRE', out_key, math.max(1, redis.call('TTL', pool .. ':task:' .. id)))
  publish_hint(out_key, entry)
end
