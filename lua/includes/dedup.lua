-- Results of earlier calls by op id.

-- Returns the stored result of an op id from the last ten minutes, or false.
local function earlier_answer(scope, op)
  return redis.call('HGET', scope .. ':ops', op) or redis.call('HGET', scope .. ':ops:before', op)
end

-- Stores the result of an op id for ten minutes. Two hashes alternate: one lives for twenty minutes and is written in
-- the first ten. After 20,000 calls in that time the older results are dropped early.
local function store_answer(scope, op, answer)
  local ops_key, before_key = scope .. ':ops', scope .. ':ops:before'
  local left_ms = redis.call('PTTL', ops_key)
  if left_ms >= 0 and (left_ms < 600000 or redis.call('HLEN', ops_key) >= 20000) then
    redis.call('RENAME', ops_key, before_key)
    left_ms = -2
  end
  redis.call('HSET', ops_key, op, answer)
  if left_ms < 0 then redis.call('PEXPIRE', ops_key, 1200000) end
end
