#!lua
-- Stores the descriptions of skills: docstrings, JSON schemas of arguments and results, and which are redacted.
-- status: ok
-- repeat: stores the same values again
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: skill digest text redact
local now_arg = ARGV[2]                   -- time: test override, microseconds
--@include time: day_s, now_us, integer

local now_ms = math.floor(now_us(now_arg) / 1000)
for i = 1, #rows do
  local descriptions_key = pool .. ':descriptions:' .. rows[i].skill
  -- Workers repeat their descriptions every day, so older ones are of versions that no worker has.
  local fields = redis.call('HKEYS', descriptions_key)
  for j = 1, #fields do
    local digest = string.match(fields[j], '^ms:(.*)$')
    if digest and now_ms - tonumber(redis.call('HGET', descriptions_key, fields[j])) > 8 * day_s * 1000 then
      redis.call('HDEL', descriptions_key, fields[j], digest)
    end
  end
  redis.call('HSET', descriptions_key, 'ms:' .. rows[i].digest, integer(now_ms), rows[i].digest, rows[i].text)
  redis.call('EXPIRE', descriptions_key, 8 * day_s)
  -- For good: the records of tasks from before an end of the redaction may be as old as their retention.
  if rows[i].redact == 1 then redis.call('SADD', pool .. ':redacted', rows[i].skill) end
end
return {'ok'}
