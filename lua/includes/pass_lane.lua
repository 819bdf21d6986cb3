-- A member of a lane has ended: it leaves, and if it was the owner the next live one gets the turn (protocol rule 21).
-- Members whose record is gone or has ended leave with it, so many at most; the reconciler looks after the rest.
--@include integer
--@include rank_of
--@include skill_queue
--@include has_ended
local function pass_lane(pool, ending, lane, id)
  local lane_key = pool .. ':lane:' .. lane
  local first = redis.call('ZRANGE', lane_key, 0, 1)
  local heir, gone = first[1] == id and first[2], {id}
  while heir and #gone < 100 do
    local task_key = pool .. ':task:' .. heir
    local found = redis.call('HMGET', task_key, 'state', 'queue', 'rank', 'env')
    local state = found[1]
    if state == 'waiting' then
      redis.call('HSET', task_key, 'state', 'ready')
      local score = integer(rank_of(found[3]) + math.floor(ending.now / 1000))
      ending.turns[heir] = {found[2] or skill_queue(found[4]), score}
      break
    end
    if state and not has_ended(state) then break end
    gone[#gone + 1] = heir
    heir = redis.call('ZRANGE', lane_key, #gone, #gone)[1]
  end
  redis.call('ZREM', lane_key, unpack(gone))
end
