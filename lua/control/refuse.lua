#!lua flags=allow-oom
-- Records entries of the control stream that a reader refuses, in the stream of refused commands.
-- returns: number of recorded entries
-- repeat: skips entries that are among the last 200 recorded
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: entry packed signature why

local refused_key = pool .. ':control:refused'
local known, recorded = {}, 0
--@rows last: entry fields
local last = redis.call('XREVRANGE', refused_key, '+', '-', 'COUNT', 200)
for i = 1, #last do
  local fields = last[i].fields
  for j = 1, #fields, 2 do
    if fields[j] == 'e' then known[fields[j + 1]] = true end
  end
end
for i = 1, #rows do
  local entry, packed, signature, why = rows[i].entry, rows[i].packed, rows[i].signature, rows[i].why
  if not known[entry] then
    redis.call('XADD', refused_key, 'MAXLEN', '~', 1000, '*', 'c', packed, 's', signature, 'r', why, 'e', entry)
    recorded = recorded + 1
  end
end
return recorded
