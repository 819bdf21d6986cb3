#!lua flags=no-writes
-- Returns the records that meet all conditions of a query. Scans the index with the fewest entries to look at, in
-- blocks of 200, and looks the entries up in the others.
-- returns: 1, or 0 when the scan stopped at `most` entries; entries scanned; where a next call goes on, or '' (at the end,
--          or all entries must be sorted); per record tier, id, header, content
-- repeat: reads again
local scope   = KEYS[1]                      -- key: root of the owner's slot
local query   = cmsgpack.unpack(ARGV[1])[1]  -- row: tiers kinds actions subject lo hi importance order offset every limit most resume
local now_arg = ARGV[2]                      -- time: test override, microseconds
--@include time: now_us

local now_ms = math.floor(now_us(now_arg) / 1000)
local lo, hi = query.lo, query.hi
local ranged = lo ~= '-inf' or hi ~= '+inf'
local by_importance = query.order == 'important'

-- Each condition is a family of indices. A record has an entry in one index of each.
local names = {time = {':time'}}
local family_order = {'time'}
local function add_family(family, parts)
  names[family] = parts
  family_order[#family_order + 1] = family
end
if #query.kinds > 0 then
  local parts = {}
  for i = 1, #query.kinds do parts[i] = ':kind:' .. query.kinds[i] end
  add_family('kind', parts)
end
if #query.actions > 0 then
  local parts = {}
  for i = 1, #query.actions do parts[i] = ':act:' .. query.actions[i] end
  add_family('act', parts)
end
if query.subject ~= '' then add_family('subj', {':subj:' .. query.subject}) end
if query.importance ~= '' or by_importance then add_family('imp', {':imp'}) end
local floor = query.importance ~= '' and query.importance or '-inf'

-- Returns the number of entries of a family that the query may scan.
local function count_family(family)
  local count = 0
  for _, tier in ipairs(query.tiers) do
    for _, part in ipairs(names[family]) do
      local key = scope .. ':' .. tier .. part
      if family == 'imp' then
        count = count + redis.call('ZCOUNT', key, floor, '+inf')
      elseif ranged then
        count = count + redis.call('ZCOUNT', key, lo, hi)
      else
        count = count + redis.call('ZCARD', key)
      end
    end
  end
  return count
end

-- An index in the order of the query is left at the limit; of another one all entries must be read. Conditions are
-- taken as independent.
local source, counts = family_order[#family_order], {}
local in_order = (source == 'imp') == by_importance
-- Entries that the answer needs, and entries of the source among which they are.
local needed = query.offset + query.limit * query.every
local expected = needed
if #family_order > 2 or not in_order or (by_importance and ranged) then
  local total, share = 0, 1
  for _, tier in ipairs(query.tiers) do total = total + redis.call('ZCARD', scope .. ':' .. tier .. ':time') end
  for _, family in ipairs(family_order) do
    counts[family] = count_family(family)
    local among = (family == 'imp' or family == 'time') and total or counts.time
    share = share * (among > 0 and counts[family] / among or 0)
  end
  local matches, best = math.max(total * share, 0.001), nil
  for _, family in ipairs(family_order) do
    local count = counts[family]
    local ordered = (family == 'imp') == by_importance
    -- Entries that must be sorted afterwards cost more.
    local cost = ordered and math.min(count, needed * count / matches) or count * 1.5 + 1
    if not best or cost <= best then best, source, in_order = cost, family, ordered end
  end
  expected = in_order and needed * counts[source] / matches or math.huge
end

--@row resume: source place score id ranks
local resume = query.resume ~= '' and cmsgpack.unpack(query.resume) or nil
if resume then source, in_order = resume.source, true end

-- The ranges of entries to scan, by rank.
local cursors = {}
for _, tier in ipairs(query.tiers) do
  local stem_key = scope .. ':' .. tier
  local first = redis.call('ZRANGE', stem_key .. ':exp', '-inf', now_ms, 'BYSCORE', 'LIMIT', 0, 1)
  for _, part in ipairs(names[source]) do
    local key, from = stem_key .. part, 0
    local count
    if source == 'imp' then
      count = redis.call('ZCOUNT', key, floor, '+inf')
    elseif ranged then
      count = redis.call('ZCOUNT', key, lo, hi)
      if count > 0 and query.order == 'old' then
        from = lo == '-inf' and 0 or redis.call('ZCOUNT', key, '-inf', '(' .. lo)
      elseif count > 0 then
        from = hi == '+inf' and 0 or redis.call('ZCOUNT', key, string.sub(hi, 2), '+inf')
      end
    else
      count = redis.call('ZCARD', key)
    end
    if resume and resume.ranks[key] then
      count = from + count - resume.ranks[key]
      from = resume.ranks[key]
    end
    if count > 0 then
      cursors[#cursors + 1] = {
        key = key, stem = stem_key, tier = tier, from = from, left = count, expired = #first > 0,
        ids = {}, scores = {}, at = 1,
      }
    end
  end
end
for _, cursor in ipairs(cursors) do
  cursor.size = math.ceil(math.max(math.min(expected, 10), expected / #cursors))
end
local low, high = tonumber(lo) or -math.huge, hi == '+inf' and math.huge or tonumber(string.sub(hi, 2))
local least = tonumber(floor) or -math.huge
-- The indices to look entries up in, and what their score must meet. Names are looked up first, the rarest in front: most
-- entries are not in their index, and Redis formats no score for these.
local checks = {}
local function add_check(family, at_least, below)
  checks[#checks + 1] = {parts = names[family], least = at_least, below = below, count = counts[family] or 0}
end
for _, family in ipairs(family_order) do
  if family == 'time' and source == 'imp' and ranged then
    add_check('time', low, high)
  elseif family == 'time' and source == 'subj' then
    -- A record that was superseded is in `subj`, and in no index of recalls.
    add_check('time')
  elseif family == 'imp' and source ~= 'imp' and floor ~= '-inf' then
    add_check('imp', least)
  elseif family ~= source and family ~= 'time' and family ~= 'imp' then
    add_check(family)
  end
end
table.sort(checks, function(left, right)
  if (left.least == nil) ~= (right.least == nil) then return left.least == nil end
  return left.count < right.count
end)

local filtered = #checks > 0

-- Keeps the entries that one of the indices has with a fitting score. Looks up in each index those that the ones before
-- it lack.
local function keep(cursor, ids, scores, parts, least_score, below)
  local passes, open, places = {}, ids, {}
  for i = 1, #ids do places[i] = i end
  for part = 1, #parts do
    local key = cursor.stem .. parts[part]
    local found = redis.call('ZMSCORE', key, unpack(open))
    local others, other_places, count = {}, {}, 0
    for i = 1, #open do
      local score = found[i]
      if score and (not least_score or tonumber(score) >= least_score) and (not below or tonumber(score) < below) then
        passes[places[i]] = true
      elseif part < #parts then
        count = count + 1
        others[count], other_places[count] = open[i], places[i]
      end
    end
    if count == 0 then break end
    open, places = others, other_places
  end
  local kept, kept_scores, count = {}, {}, 0
  for i = 1, #ids do
    if passes[i] then
      count = count + 1
      kept[count], kept_scores[count] = ids[i], scores[i]
    end
  end
  return kept, kept_scores
end

local scanned, cut = 0, false
local with_scores = #cursors > 1 and in_order
-- Reads blocks of a cursor until it has an entry that meets all conditions, or ends.
local function load_block(cursor)
  while cursor.at > #cursor.ids and cursor.left > 0 do
    if scanned >= query.most then
      cut = true
      return
    end
    local count = math.min(cursor.size, 200, cursor.left, query.most - scanned)
    cursor.size = cursor.size * 2
    local key, ids, scores = cursor.key, {}, {}
    local range = {'ZRANGE', key, cursor.from, cursor.from + count - 1}
    if not (in_order and query.order == 'old') then range[#range + 1] = 'REV' end
    if with_scores then range[#range + 1] = 'WITHSCORES' end
    local found = redis.call(unpack(range))
    if with_scores then
      for i = 1, count do ids[i], scores[i] = found[2 * i - 1], tonumber(found[2 * i]) end
    else
      ids = found
    end
    cursor.block = cursor.from
    cursor.from, cursor.left, scanned = cursor.from + count, cursor.left - count, scanned + count
    for _, check in ipairs(checks) do
      if #ids > 0 then ids, scores = keep(cursor, ids, scores, check.parts, check.least, check.below) end
    end
    if cursor.expired and #ids > 0 then ids, scores = keep(cursor, ids, scores, {':exp'}, now_ms + 1) end
    cursor.ids, cursor.scores, cursor.at = ids, scores, 1
  end
end

local taken, tiers, next_call = {}, {}, ''
if #cursors == 1 and in_order and not filtered and not cursors[1].expired and not resume then
  -- Positions are ranks.
  local cursor = cursors[1]
  local key, direction = cursor.key, query.order == 'old' and {} or {'REV'}
  if query.every == 1 then
    local last = math.min(cursor.left, query.offset + query.limit) - 1
    if last >= query.offset then
      taken = redis.call('ZRANGE', key, cursor.from + query.offset, cursor.from + last, unpack(direction))
    end
  else
    for i = 0, query.limit - 1 do
      local place = query.offset + i * query.every
      if place < cursor.left then
        taken[#taken + 1] = redis.call('ZRANGE', key, cursor.from + place, cursor.from + place, unpack(direction))[1]
      end
    end
  end
  scanned = #taken
  for i = 1, #taken do tiers[i] = cursor.tier end
elseif in_order then
  -- Returns whether the next entry of a cursor is higher than that of another one.
  local function is_higher(cursor, other)
    local score, other_score = cursor.scores[cursor.at], other.scores[other.at]
    if score ~= other_score then return score > other_score end
    return cursor.ids[cursor.at] > other.ids[other.at]
  end
  local ascending = query.order == 'old'
  local place, last_score, last_id = 0, false, ''
  if resume then place, last_score, last_id = resume.place, resume.score, resume.id end
  while #taken < query.limit do
    local best
    for _, cursor in ipairs(cursors) do
      load_block(cursor)
      if cursor.at <= #cursor.ids and (not best or is_higher(cursor, best) ~= ascending) then best = cursor end
    end
    if cut or not best then break end
    local id, score = best.ids[best.at], best.scores[best.at] or false
    best.at = best.at + 1
    -- A block that the call before has left is read again.
    local known = false
    if score and last_score then
      known = id == last_id or (id < last_id) == ascending
      if score ~= last_score then known = (score < last_score) == ascending end
    end
    if not known then
      if place >= query.offset and (place - query.offset) % query.every == 0 then
        taken[#taken + 1] = id
        tiers[#taken] = best.tier
      end
      place, last_score, last_id = place + 1, score, id
    end
  end
  if cut then
    local ranks = {}
    for _, cursor in ipairs(cursors) do
      ranks[cursor.key] = cursor.at <= #cursor.ids and cursor.block or cursor.from
    end
    next_call = cmsgpack.pack({source, place, last_score, last_id, ranks})
  end
else
  -- All entries in the range, sorted afterwards.
  local found = {}
  for _, cursor in ipairs(cursors) do
    load_block(cursor)
    while cursor.at <= #cursor.ids do
      local key = cursor.stem .. (by_importance and ':imp' or ':time')
      local scores = redis.call('ZMSCORE', key, unpack(cursor.ids))
      for i = 1, #cursor.ids do
        if scores[i] then
          found[#found + 1] = {cursor.ids[i], cursor.tier, tonumber(scores[i])}
        end
      end
      cursor.at = #cursor.ids + 1
      load_block(cursor)
    end
  end
  local ascending = query.order == 'old'
  if #found > needed then
    -- Lua sorts numbers much faster than it calls a function for each pair: records behind the last place are left out.
    local values, kept = {}, {}
    for i = 1, #found do values[i] = ascending and found[i][3] or -found[i][3] end
    table.sort(values)
    for i = 1, #found do
      if (ascending and found[i][3] or -found[i][3]) <= values[needed] then kept[#kept + 1] = found[i] end
    end
    found = kept
  end
  table.sort(found, function(left, right)
    if not ascending then left, right = right, left end
    if left[3] ~= right[3] then return left[3] < right[3] end
    return left[1] < right[1]
  end)
  for i = 1, #found do
    local place = i - 1 - query.offset
    if place >= 0 and place % query.every == 0 and #taken < query.limit then
      taken[#taken + 1], tiers[#taken + 1] = found[i][1], found[i][2]
    end
  end
end

local reply, by_tier = {cut and 0 or 1, scanned, next_call}, {}
for i = 1, #taken do
  local list = by_tier[tiers[i]] or {}
  by_tier[tiers[i]] = list
  list[#list + 1] = i
end
for tier, places in pairs(by_tier) do
  local ids, stem_key = {}, scope .. ':' .. tier
  for i = 1, #places do ids[i] = taken[places[i]] end
  local headers = redis.call('HMGET', stem_key .. ':hdr', unpack(ids))
  local contents = redis.call('HMGET', stem_key .. ':rec', unpack(ids))
  for i = 1, #places do
    local at = 4 * places[i]
    reply[at], reply[at + 1], reply[at + 2], reply[at + 3] = tier, ids[i], headers[i], contents[i]
  end
end
return reply
