#!lua
-- Adds up to 500 records to the selection of a `forget`, so that later changes do not alter it.
-- A selection changes no record, so that it takes no caller row.
-- returns: number of records in the selection
-- repeat: adds nothing that is already stored
local scope     = KEYS[1]                    -- key: root of the owner's slot
local selection = ARGV[1]                    -- str: id of the selection
local at        = tonumber(ARGV[2])          -- int: number of records stored before these
local rows      = cmsgpack.unpack(ARGV[3])   -- rows: version id
--@include time: integer

local selection_key = scope .. ':forget:' .. selection
local there = redis.call('LLEN', selection_key)
if there == at then
  local entries = {}
  for i = 1, #rows do entries[i] = integer(rows[i].version) .. ' ' .. rows[i].id end
  there = redis.call('RPUSH', selection_key, unpack(entries))
end
redis.call('EXPIRE', selection_key, 3600)
return there
