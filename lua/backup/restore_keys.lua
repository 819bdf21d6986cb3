#!lua
-- Writes keys of one slot from a backup, or parts of large ones. A first part replaces the key.
-- returns: number of written rows
-- repeat: writes the same again
local pool    = KEYS[1]                   -- key: root of the slot: of a pool, or of a scope of its prefix
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: suffix type values first left_ms until_ms
local now_arg = ARGV[2]                   -- time: test override, microseconds
--@include time: now_us, integer

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
      --@rows values: id fields
      for n = 1, #values do redis.call('XADD', row_key, values[n].id, unpack(values[n].fields)) end
    else
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
