-- Give back the rate-limit slots of a grant that never became a start. If it was the last of its limit, its time stays
-- behind: older grants were forgotten by it, so a clock that steps back behind it must not count by its own time.
--@include notify_supervisor
local function return_slots(pool, agent, id, generation)
  local limits = redis.call('HGET', pool .. ':agent:' .. agent, 'limits')
  if not limits or limits == '' then return end
  for name in string.gmatch(limits, '%S+') do
    local limit_key, grant = pool .. ':limit:' .. name, id .. ':' .. generation
    -- Two members with their scores, the last one behind; of one alone the first two values are missing.
    local last = redis.call('ZRANGE', limit_key, -2, -1, 'WITHSCORES')
    local n = #last
    if last[n - 1] == grant and last[n - 2] ~= last[n] then
      -- Its name is the time, which no grant is called; at infinity nobody counts it. Before the grant goes, so that the
      -- key keeps its lifetime.
      redis.call('ZADD', limit_key, '+inf', last[n])
    end
    redis.call('ZREM', limit_key, grant)
  end
  notify_supervisor(pool, 'agent:' .. agent)
end
