-- Whether some session is stopped: only then is it worth looking which session a task is of.
local function any_session_stopped(pool)
  return tonumber(redis.call('HGET', pool .. ':desired', 'sessions') or 0) > 0
end
