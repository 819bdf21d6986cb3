#!lua
-- Lets time pass for providers: moves the ends of what blocks them back, what counts in their windows, and the times of their calls.
-- returns: ok
-- repeat: moves time again
local pool  = KEYS[1]                   -- key: root of the pool's slot, or of the scope of a limit that pools share
local names = cmsgpack.unpack(ARGV[1])  -- rows: name
local by_ms = tonumber(ARGV[2])         -- int: time that passes

for i = 1, #names do
  local name = names[i].name
  local blocked_key, usage_key, calls_key = pool .. ':blocked:' .. name, pool .. ':provider:usage:' .. name, pool .. ':provider:calls:' .. name
  for _, kind in ipairs({'throttled', 'quota', 'broken'}) do
    local stored = redis.call('HGET', blocked_key, kind)
    local ends, told = string.match(stored or '', '^(%d+)( .*)$')
    if ends and ends ~= '0' then
      redis.call('HSET', blocked_key, kind, string.format('%.0f', math.max(1, ends - by_ms)) .. told)
    end
  end
  -- A call that has begun returns tokens to the time at which its window counted them.
  local begun = redis.call('HGETALL', calls_key)
  for j = 1, #begun, 2 do
    local tokens, at, by = string.match(begun[j + 1], '^(%d+) (%d+)( .*)$')
    if tokens then redis.call('HSET', calls_key, begun[j], tokens .. ' ' .. string.format('%.0f', at - by_ms * 1000) .. by) end
  end
  local fields = redis.call('HKEYS', usage_key)
  for j = 1, #fields do
    local sums = string.find(fields[j], ':', 1, true) and redis.call('HGET', usage_key, fields[j]) or ''
    for place = 9, #sums, 24 do
      local first, last, sum = struct.unpack('>ddd', sums, place)
      sums = string.sub(sums, 1, place - 1) .. struct.pack('>ddd', first - by_ms * 1000, last - by_ms * 1000, sum)
        .. string.sub(sums, place + 24)
    end
    if sums ~= '' then redis.call('HSET', usage_key, fields[j], sums) end
  end
end
return 'ok'
