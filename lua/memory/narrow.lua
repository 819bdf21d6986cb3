#!lua flags=no-writes
-- Returns the ids of the records that meet all conditions, if an index has `few` entries to look at, or up to `most` and
-- these are a small share of all; else how many records meet each condition, so that the caller can plan a search.
-- returns: 1 and the ids; or 0, the number of records, those of them in the tiers, and of these those in the range of
--          steps, with the kinds, with the actions, about the subject, and of the importance, -1 for what is not asked
-- repeat: reads again
local scope = KEYS[1]                      -- key: root of the agent's slot
local query = cmsgpack.unpack(ARGV[1])[1]  -- row: tiers kinds actions subject lo hi importance few most

-- Each condition is a family of indices, which have scores from `lo` to `hi`.
local families = {{parts = {':time'}, lo = query.lo, hi = query.hi}}
local function add_family(stem, names)
  local parts = {}
  for i = 1, #names do parts[i] = stem .. names[i] end
  families[#families + 1] = {parts = parts, lo = query.lo, hi = query.hi, asked = #names > 0}
end
add_family(':kind:', query.kinds)
add_family(':act:', query.actions)
add_family(':subj:', query.subject ~= '' and {query.subject} or {})
local importance = query.importance ~= '' and query.importance or '-inf'
families[#families + 1] = {parts = {':imp'}, lo = importance, hi = '+inf', asked = query.importance ~= ''}
families[1].asked = query.lo ~= '-inf' or query.hi ~= '+inf'

local in_tiers = 0
for _, tier in ipairs(query.tiers) do in_tiers = in_tiers + redis.call('ZCARD', scope .. ':' .. tier .. ':time') end
local source
for _, family in ipairs(families) do
  family.count = -1
  if family.asked then
    family.count = 0
    for _, tier in ipairs(query.tiers) do
      for _, part in ipairs(family.parts) do
        family.count = family.count + redis.call('ZCOUNT', scope .. ':' .. tier .. part, family.lo, family.hi)
      end
    end
    if not source or family.count < source.count then source = family end
  end
end
local all = redis.call('ZCARD', scope .. ':stm:time') + redis.call('ZCARD', scope .. ':im:time')
-- A filtered search of an index costs the more the smaller the share of fitting records is.
local fits = source and (source.count <= query.few or (source.count <= query.most and source.count * 20 <= all))
if not fits then
  local reply = {0, all, in_tiers}
  for i = 1, #families do reply[i + 3] = families[i].count end
  return reply
end

-- Keeps the entries that an index of a family has with a score in its range.
local function keep(stem_key, ids, family)
  local least = tonumber(family.lo) or -math.huge
  local below = family.hi == '+inf' and math.huge or tonumber(string.sub(family.hi, 2))
  local passes, kept = {}, {}
  for _, part in ipairs(family.parts) do
    for first = 1, #ids, 1000 do
      local last = math.min(first + 999, #ids)
      local scores = redis.call('ZMSCORE', stem_key .. part, unpack(ids, first, last))
      for i = first, last do
        local score = scores[i - first + 1]
        if score and tonumber(score) >= least and tonumber(score) < below then passes[i] = true end
      end
    end
  end
  for i = 1, #ids do
    if passes[i] then kept[#kept + 1] = ids[i] end
  end
  return kept
end

local reply = {1}
for _, tier in ipairs(query.tiers) do
  local stem_key, ids = scope .. ':' .. tier, {}
  for _, part in ipairs(source.parts) do
    local found = redis.call('ZRANGE', stem_key .. part, source.lo, source.hi, 'BYSCORE')
    for i = 1, #found do ids[#ids + 1] = found[i] end
  end
  for _, family in ipairs(families) do
    if family.asked and family ~= source and #ids > 0 then ids = keep(stem_key, ids, family) end
  end
  for i = 1, #ids do reply[#reply + 1] = ids[i] end
end
return reply
