-- Let a task that somebody works on outlive the time that it was allowed to wait, and its key and output with it.
local function keep_alive(pool, id, idem, out)
  redis.call('EXPIRE', pool .. ':task:' .. id, 86400, 'GT')
  if idem then redis.call('EXPIRE', pool .. ':idem:' .. idem, 86400, 'GT') end
  if out then redis.call('EXPIRE', pool .. ':out:' .. id, 86400, 'GT') end
end
