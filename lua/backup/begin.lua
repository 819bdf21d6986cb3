#!lua
-- Marks a pool for a run of a restore, so that no program starts in it. A new run of the same file replaces the one before.
-- status: begun | continued (a run before has begun) | occupied (a part of another file) | used (a program was here)
-- repeat: returns continued
local pool  = KEYS[1]                   -- key: root of the pool's slot
local mark  = ARGV[1]                   -- str: mark of the file
local run   = ARGV[2]                   -- str: this run
local fixed = cmsgpack.unpack(ARGV[3])  -- rows: suffix

local format_key = pool .. ':format'
local stored = redis.call('GET', format_key) or ''
local status = 'begun'
if string.sub(stored, 1, #mark + 1) == mark .. ' ' then
  status = 'continued'
elseif string.sub(stored, 1, 9) == 'restoring' then
  return 'occupied'
else
  for i = 1, #fixed do
    if redis.call('EXISTS', pool .. ':' .. fixed[i].suffix) == 1 then return 'used' end
  end
end
redis.call('SET', format_key, mark .. ' ' .. run)
return status
