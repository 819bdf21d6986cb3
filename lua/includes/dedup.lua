-- Makes a change of a scope once per op id.

-- Returns the reply to a change whose op id is known: `duplicate` and the first call's values. nil: the op id is new.
local function earlier_reply(scope, op)
  local packed = redis.call('HGET', scope .. ':ops', op) or redis.call('HGET', scope .. ':ops:before', op)
  if packed then return {'duplicate', unpack(cmsgpack.unpack(packed))} end
end

-- Stores the values that a change returns, for at least `window_ms`. Scripts call this last. Two hashes alternate: a
-- hash that is `window_ms` old, or holds `most` op ids, replaces the one before it.
local function store_reply(scope, op, window_ms, most, values)
  local ops_key, before_key = scope .. ':ops', scope .. ':ops:before'
  redis.call('HSET', ops_key, op, cmsgpack.pack(values))
  local left_ms = redis.call('PTTL', ops_key)
  if left_ms < 0 then
    redis.call('PEXPIRE', ops_key, window_ms * 2)
  elseif left_ms <= window_ms or redis.call('HLEN', ops_key) >= most then
    redis.call('UNLINK', before_key)
    redis.call('RENAME', ops_key, before_key)
    redis.call('PEXPIRE', before_key, window_ms)
  end
end
