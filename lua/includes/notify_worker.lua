-- Leave a note for one worker; it hears it at once (`workers/runtime/listener.py`). A hint: what a note says is stored
-- elsewhere, and a worker that missed it learns of it at its next heartbeat.
local function notify_worker(pool, worker, kind, id, generation)
  local notes_key = pool .. ':worker:' .. worker .. ':notes'
  redis.call('XADD', notes_key, 'MAXLEN', '~', 1000, '*', 'k', kind, 't', id, 'g', generation)
  redis.call('EXPIRE', notes_key, 60)
end
