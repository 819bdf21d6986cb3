#!lua flags=allow-oom
-- Checks that logs, sets, scratches and inboxes of a workspace are listed in it; with `repair` lists them.
-- codes: unlisted-part (a workspace does not list a part that is there)
-- returns: per finding: row code place repaired (1 or 0)
-- repeat: finds nothing that it has repaired
local scope   = KEYS[1]                   -- key: root of the session's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: suffix type
local repair  = ARGV[2]                   -- str: 1 = repair what is found
local now_arg = ARGV[3]                   -- time: test override, microseconds
--@include time: now_us, integer
--@include key: has_type

local parts_key = scope .. ':ws:parts'
local types, answers = {}, {}
if not has_type(types, parts_key, 'hash') then return answers end

for i = 1, #rows do
  local suffix, type = rows[i].suffix, rows[i].type
  local part_key = scope .. ':' .. suffix
  if has_type(types, part_key, type) and types[part_key] ~= 'none' and redis.call('HEXISTS', parts_key, suffix) == 0 then
    if repair == '1' then
      -- A log continues behind its last item. The others get a version that is higher than all before.
      local number = integer(math.floor(now_us(now_arg) / 1000))
      if type == 'list' then number = string.match(redis.call('LINDEX', part_key, -1), '^%d+') or number end
      redis.call('HSET', parts_key, suffix, number)
      local left_ms = redis.call('PTTL', part_key)
      if left_ms > 0 then redis.call('PEXPIRE', parts_key, left_ms, 'NX') end
    end
    local n = #answers
    answers[n + 1], answers[n + 2], answers[n + 3], answers[n + 4] = i, 'unlisted-part', '', repair == '1' and 1 or 0
  end
end
return answers
