-- The output stream of a task.
--@include notify: publish_hint

-- Note a step of a task's life in its output stream, and let the stream live as long as the task. Only for tasks that
-- emit or are followed (those with the field `out`); called when the step and its lifetime are written.
local function append_event(pool, id, generation, attempt, kind, text)
  local out_key = pool .. ':out:' .. id
  -- The highest cap that `output.max_chunks` may have: emit trims to the one that is set.
  local entry = redis.call('XADD', out_key, 'MAXLEN', '~', 10000, '*', 'k', kind, 'g', generation, 'a', attempt, 'd', text)
  redis.call('EXPIRE', out_key, math.max(1, redis.call('TTL', pool .. ':task:' .. id)))
  publish_hint(out_key, entry)
end
