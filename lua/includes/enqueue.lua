-- Note a task for its queue: `ready` maps a queue to the flat list that `put_ready` takes.
local function enqueue(ready, queue, score, id)
  local scored = ready[queue]
  if not scored then
    scored = {}
    ready[queue] = scored
  end
  scored[#scored + 1] = score
  scored[#scored + 1] = id
end
