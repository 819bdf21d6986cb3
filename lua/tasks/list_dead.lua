#!lua flags=no-writes
-- Reads skill and first line of the reason of the newest dead letters, by which lists group them.
-- returns: number of dead letters, then per letter: id, ms of its end, skill, line of at most 300 bytes
-- repeat: reads again
local pool  = KEYS[1]            -- key: root of the pool's slot
local limit = tonumber(ARGV[1])  -- int: at most this many (1000)
--@include envelope: skill_queue
--@include key: has_type
--@include record: read_task

local dead_key, types = pool .. ':dead', {}
local found = redis.call('ZRANGE', dead_key, 0, limit - 1, 'REV', 'WITHSCORES')
local answers = {redis.call('ZCARD', dead_key)}
for i = 1, #found, 2 do
  local task_key = pool .. ':task:' .. found[i]
  if has_type(types, task_key, 'hash') then
    local task = read_task(task_key, 'env', 'reason')
    if task.env then
      answers[#answers + 1], answers[#answers + 2] = found[i], found[i + 1]
      answers[#answers + 1] = string.sub(skill_queue(task.env), 7)
      answers[#answers + 1] = string.sub(string.match(task.reason or '', '^[^\r\n]*'), 1, 300)
    end
  end
end
return answers
