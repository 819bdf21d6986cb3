#!lua flags=no-writes
-- Returns the records inside a circle, the nearest first. Reads the cells that it touches, or all records when none are
-- given, in blocks of 200.
-- returns: 1, or 0 when the scan stopped at `most` entries; entries scanned; ''; per record tier, id, header, content
-- repeat: reads again
local scope   = KEYS[1]                      -- key: root of the owner's slot
local circle  = cmsgpack.unpack(ARGV[1])[1]  -- row: tiers cells x y radius limit most
local now_arg = ARGV[2]                      -- time: test override, microseconds
--@include time: now_us

local now_ms = math.floor(now_us(now_arg) / 1000)
local parts = {}
for i = 1, #circle.cells do parts[i] = ':cell:' .. circle.cells[i] end
if #parts == 0 then parts[1] = ':time' end

local scanned, cut, found = 0, false, {}
for _, tier in ipairs(circle.tiers) do
  local stem_key = scope .. ':' .. tier
  for _, part in ipairs(parts) do
    local from, left = 0, redis.call('ZCARD', stem_key .. part)
    while left > 0 and not cut do
      local count = math.min(200, left, circle.most - scanned)
      if count <= 0 then
        cut = true
        break
      end
      local ids = redis.call('ZRANGE', stem_key .. part, from, from + count - 1, 'REV')
      local headers = redis.call('HMGET', stem_key .. ':hdr', unpack(ids))
      for i = 1, #ids do
        --@row header: version score importance deadline stored kind action cell subject simulation superseded bytes x y meta type own vector
        local header = headers[i] and cmsgpack.unpack(headers[i])
        if header and header.x and header.deadline > now_ms then
          local distance = math.sqrt((header.x - circle.x) ^ 2 + (header.y - circle.y) ^ 2)
          if distance <= circle.radius then
            found[#found + 1] = {distance, header.score, ids[i], stem_key, tier, headers[i]}
          end
        end
      end
      from, left, scanned = from + count, left - count, scanned + count
    end
  end
end
table.sort(found, function(left, right)
  if left[1] ~= right[1] then return left[1] < right[1] end
  if left[2] ~= right[2] then return left[2] > right[2] end
  return left[3] > right[3]
end)
local reply = {cut and 0 or 1, scanned, ''}
for i = 1, math.min(#found, circle.limit) do
  local _, _, id, stem_key, tier, packed = unpack(found[i])
  local at = 4 * i
  reply[at], reply[at + 1], reply[at + 2] = tier, id, packed
  reply[at + 3] = redis.call('HGET', stem_key .. ':rec', id)
end
return reply
