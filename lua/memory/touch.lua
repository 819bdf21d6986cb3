#!lua
-- Counts an access to up to 500 records.
-- returns: ok, number of records that exist | duplicate, the same | fenced value | occupied value ms
-- repeat: returns duplicate and the first call's result; another, if the op id has named other records
local scope   = KEYS[1]                      -- key: root of the owner's slot
local caller  = cmsgpack.unpack(ARGV[1])[1]  -- row: op lock token agent exclusive
local rows    = cmsgpack.unpack(ARGV[2])     -- rows: id
local now_arg = ARGV[3]                      -- time: test override, microseconds
--@include memory: open_memory, close_memory
--@include time: integer

local now_ms, reply = open_memory(scope, 'touch', caller, now_arg)
if not now_ms then return reply end
local ids, touched = {}, 0
for i = 1, #rows do ids[i] = rows[i].id end
for _, tier in ipairs({'stm', 'im'}) do
  local stem_key = scope .. ':' .. tier
  local deadlines = redis.call('ZMSCORE', stem_key .. ':exp', unpack(ids))
  local counts, written = redis.call('HMGET', stem_key .. ':acc', unpack(ids)), {}
  for i = 1, #ids do
    if deadlines[i] and tonumber(deadlines[i]) > now_ms then
      local count = tonumber(string.match(counts[i] or '', '^%d+') or 0) + 1
      written[#written + 1] = ids[i]
      written[#written + 1] = integer(count) .. ' ' .. integer(now_ms)
      touched = touched + 1
    end
  end
  if #written > 0 then
    redis.call('HSET', stem_key .. ':acc', unpack(written))
    redis.call('PEXPIREAT', stem_key .. ':acc', redis.call('PEXPIRETIME', stem_key .. ':hdr'))
  end
end
return close_memory(scope, 'touch', caller, {touched})
