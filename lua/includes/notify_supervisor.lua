-- Tell the supervisors what has new work or new room. A hint: a lost ring costs one sweep, never a task.
local function notify_supervisor(pool, what)
  redis.call('XADD', pool .. ':doorbell', 'MAXLEN', '~', 1000, '*', 'w', what)
end
