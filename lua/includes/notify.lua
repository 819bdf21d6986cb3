-- Entries that wake supervisors, workers and followers of a task.

-- Tell the supervisors what has new work or new room. A hint: a lost ring costs one sweep, never a task.
local function notify_supervisor(pool, what)
  redis.call('XADD', pool .. ':doorbell', 'MAXLEN', '~', 1000, '*', 'w', what)
end

-- Leave a note for one worker; it hears it at once (`workers/runtime/listener.py`). A hint: what a note says is stored
-- elsewhere, and a worker that missed it learns of it at its next heartbeat.
local function notify_worker(pool, worker, kind, id, generation)
  local notes_key = pool .. ':worker:' .. worker .. ':notes'
  redis.call('XADD', notes_key, 'MAXLEN', '~', 1000, '*', 'k', kind, 't', id, 'g', generation)
  redis.call('EXPIRE', notes_key, 60)
end

-- Tell those who follow a task that its output stream has grown. A hint: they also look by themselves, so a user who may
-- not publish loses time, never a script in the middle.
local function publish_hint(out_key, entry)
  if redis.acl_check_cmd('SPUBLISH', out_key, entry) then redis.call('SPUBLISH', out_key, entry) end
end
