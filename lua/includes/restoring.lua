-- The mark of a restore, which is in place of the pool's floor until the restore has ended.

-- Returns whether the restore with this mark goes on: it has not ended, and no later run has replaced it.
local function goes_on(pool, mark)
  return redis.call('GET', pool .. ':format') == mark
end

-- Returns whether an entry comes after another one.
local function comes_after(id, last)
  local ms, number = string.match(id, '^(%d+)%-(%d+)$')
  local last_ms, last_number = string.match(last, '^(%d+)%-(%d+)$')
  ms, last_ms = tonumber(ms), tonumber(last_ms)
  return ms > last_ms or (ms == last_ms and tonumber(number) > tonumber(last_number))
end

-- Appends the entries that a stream lacks, and returns their number: those behind its last one.
local function add_entries(key, entries)
  local newest = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)
  local last, added = newest[1] and newest[1][1] or '0-0', 0
  --@rows entries: id fields
  for n = 1, #entries do
    if comes_after(entries[n].id, last) then
      redis.call('XADD', key, entries[n].id, unpack(entries[n].fields))
      last = entries[n].id
      added = added + 1
    end
  end
  return added
end
