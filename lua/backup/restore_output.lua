#!lua
-- Appends entries to output streams of tasks from a backup. Entries that are there already stay.
-- returns: number of added entries
-- repeat: adds nothing
local pool = KEYS[1]                   -- key: root of the pool's slot
local rows = cmsgpack.unpack(ARGV[1])  -- rows: id left_ms entries

local function comes_after(id, last)
  local ms, number = string.match(id, '^(%d+)%-(%d+)$')
  local last_ms, last_number = string.match(last, '^(%d+)%-(%d+)$')
  ms, last_ms = tonumber(ms), tonumber(last_ms)
  return ms > last_ms or (ms == last_ms and tonumber(number) > tonumber(last_number))
end

local added = 0
for i = 1, #rows do
  local row = rows[i]
  local out_key = pool .. ':out:' .. row.id
  -- The task itself comes later, so output of one that exists is known.
  if redis.call('EXISTS', pool .. ':task:' .. row.id) == 0 then
    local newest = redis.call('XREVRANGE', out_key, '+', '-', 'COUNT', 1)
    local last = newest[1] and newest[1][1] or '0-0'
    --@rows entries: id fields
    local entries = row.entries
    for n = 1, #entries do
      if comes_after(entries[n].id, last) then
        redis.call('XADD', out_key, entries[n].id, unpack(entries[n].fields))
        last = entries[n].id
        added = added + 1
      end
    end
    redis.call('PEXPIRE', out_key, row.left_ms > 0 and row.left_ms or 86400000)
  end
end
return added
