#!lua
-- Writes keys of one slot from a backup, or parts of large ones. A first part replaces the key; a further part of a list or
-- stream that is there already is left out.
-- returns: number of written rows; -1: a later run of the restore has replaced this one
-- repeat: writes the same again
local pool    = KEYS[1]                   -- key: root of the slot: of a pool, or of a scope of its prefix
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: suffix type values first before left_ms until_ms
local mark    = ARGV[2]                   -- str: mark of the run; empty: the slot is not that of the pool
local now_arg = ARGV[3]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include restoring: goes_on, add_entries

if mark ~= '' and not goes_on(pool, mark) then return -1 end
local now_ms = math.floor(now_us(now_arg) / 1000)
local commands = {hash = 'HSET', set = 'SADD', zset = 'ZADD', list = 'RPUSH'}
local written = 0

for i = 1, #rows do
  local row = rows[i]
  local row_key, type, values = pool .. ':' .. row.suffix, row.type, row.values
  if row.until_ms == 0 or row.until_ms > now_ms then
    if row.first then redis.call('UNLINK', row_key) end
    if type == 'string' then
      redis.call('SET', row_key, values[1])
    elseif type == 'stream' then
      add_entries(row_key, values)
    elseif type ~= 'list' or redis.call('LLEN', row_key) <= row.before then
      for first = 1, #values, 500 do
        redis.call(commands[type], row_key, unpack(values, first, math.min(first + 499, #values)))
      end
    end
    if row.until_ms > 0 then
      redis.call('PEXPIREAT', row_key, integer(row.until_ms))
    elseif row.left_ms > 0 then
      redis.call('PEXPIRE', row_key, integer(row.left_ms))
    end
    written = written + 1
  end
end
return written
