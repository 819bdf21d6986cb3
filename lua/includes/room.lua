-- Room in the inbox of an agent.
--@include time: integer
--@include registry: live_workers

-- Returns how many more entries the inbox of an agent takes. `suspects` counts the suspects that its workers may take: one
-- slot per worker stays free for them, and no entry may wait unread, because workers would read it before them.
local function inbox_room(pool, agent, slots, backlog, suspects)
  local room = slots * (1 + backlog) - redis.call('XLEN', pool .. ':inbox:' .. agent)
  if suspects > 0 then
    room = room - slots * backlog - math.min(suspects, live_workers(pool .. ':agent:' .. agent))
  end
  return room
end

-- Marks an agent that is full: it notifies supervisors when its inbox has fewer entries than its slots plus half the
-- backlog (protocol rule 6). `known` is the mark that it has.
local function mark_full(pool, agent, slots, backlog, known)
  local mark = integer(math.ceil(slots * (1 + backlog / 2)))
  if mark ~= known then redis.call('HSET', pool .. ':agent:' .. agent, 'mark', mark) end
end
