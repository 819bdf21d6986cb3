-- Indices of the tasks with a tag, ordered by the time of the submit.
--@include time: integer
--@include key: percent_encode
--@include envelope: options_at

-- New tasks of a tag after which a submit looks for old ones that are gone.
local trim_after = 64

-- Oldest tasks of a tag that it looks at.
local trim_oldest = 100

-- Returns the place of a task in an index: the ms in its id.
local function submitted_ms(id)
  return integer(tonumber(string.sub(id, 1, 8) .. string.sub(id, 10, 13), 16) or 0)
end

-- Returns the text at a position of an envelope, or nil for another value, and the position behind it.
local function text_at(envelope, at)
  local kind, high, low = string.byte(envelope, at, at + 2)
  -- MessagePack: one byte with the length, or a kind and a length of one or two bytes.
  local size, from = (kind or 0) - 160, at + 1
  if kind == 217 then size, from = high or 0, at + 2
  elseif kind == 218 then size, from = (high or 0) * 256 + (low or 0), at + 3
  elseif size < 0 or size > 31 then return nil, at + 1 end
  return string.sub(envelope, from, from + size - 1), from + size
end

-- Returns the tags of an envelope as in their keys; none if they cannot be read. They follow priority and session, each
-- of which is one byte or a text. The decoder is not used, because it fails at a damaged record.
local function tags_of(envelope)
  local at, tags, _ = options_at(envelope), {}, nil
  if not at then return tags end
  _, at = text_at(envelope, at + 1)
  local kind, high, low = string.byte(envelope, at, at + 2)
  local count = (kind or 0) - 144
  at = at + 1
  if kind == 220 then count, at = (high or 0) * 256 + (low or 0), at + 2
  elseif count < 0 or count > 15 then return tags end
  for i = 1, count do
    local tag
    tag, at = text_at(envelope, at)
    if not tag then return {} end
    tags[i] = percent_encode(tag)
  end
  return tags
end

-- Collects a new task for the indices of its tags.
local function collect_tags(indices, tags, id)
  local place = submitted_ms(id)
  for i = 1, #tags do
    local scored = indices[tags[i]]
    if not scored then
      scored = {}
      indices[tags[i]] = scored
    end
    scored[#scored + 1] = place
    scored[#scored + 1] = id
  end
end

-- Removes the tasks that are gone from the oldest ones of an index.
local function trim_index(pool, tag_key)
  local ids, task_keys, gone = redis.call('ZRANGE', tag_key, 0, trim_oldest - 1), {}, {}
  for i = 1, #ids do task_keys[i] = pool .. ':task:' .. ids[i] end
  if redis.call('EXISTS', unpack(task_keys)) == #ids then return end
  for i = 1, #ids do
    if redis.call('EXISTS', task_keys[i]) == 0 then gone[#gone + 1] = ids[i] end
  end
  redis.call('ZREM', tag_key, unpack(gone))
end

-- Stores the collected tasks of each tag. Records expire without a script, so that the submits remove their entries.
local function flush_tags(pool, indices)
  for tag, scored in pairs(indices) do
    local tag_key = pool .. ':tag:' .. tag
    redis.call('ZADD', tag_key, unpack(scored))
    local size = redis.call('ZCARD', tag_key)
    if math.floor(size / trim_after) > math.floor((size - #scored / 2) / trim_after) then trim_index(pool, tag_key) end
  end
end
