-- The score that an assigned task had in its queue.
local function original_score(task_key)
  return string.match(redis.call('HGET', task_key, 'at'), '(%S+)$')
end
