-- Give back the rate-limit slots of a grant that never became a start.
--@include ring
local function return_slots(pool, agent, id, generation)
  local limits = redis.call('HGET', pool .. ':agent:' .. agent, 'limits')
  if not limits or limits == '' then return end
  for name in string.gmatch(limits, '%S+') do
    redis.call('ZREM', pool .. ':limit:' .. name, id .. ':' .. generation)
  end
  ring(pool, 'agent:' .. agent)
end
