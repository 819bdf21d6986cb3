-- What a call of this op id was answered, if it came within the last ten minutes (`remember`); false: it is new.
local function answered(scope, op)
  return redis.call('HGET', scope .. ':ops', op) or redis.call('HGET', scope .. ':ops:before', op)
end
