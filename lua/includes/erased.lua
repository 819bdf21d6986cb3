-- Marks of people who were erased a moment ago, so that no text about them is stored again.
--@include time: integer

-- Returns whether text about a person is refused in this scope. `person` is the SHA-1 of the encoded subject, so that no
-- mark names the person.
local function is_erased(scope, person, now_ms)
  local until_ms = redis.call('ZSCORE', scope .. ':erased', person)
  return until_ms and tonumber(until_ms) > now_ms
end

-- Refuses text about a person in this scope for a time.
local function mark_erased(scope, person, now_ms, for_ms)
  local erased_key = scope .. ':erased'
  redis.call('ZREMRANGEBYSCORE', erased_key, '-inf', integer(now_ms))
  redis.call('ZADD', erased_key, 'GT', integer(now_ms + for_ms), person)
  redis.call('PEXPIRE', erased_key, for_ms, 'NX')
  redis.call('PEXPIRE', erased_key, for_ms, 'GT')
end
