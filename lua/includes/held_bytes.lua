-- Bytes of the tasks that wait, in any place: a hash with a field for each queue, and `*` for the pool (protocol rule 34).
-- `queues:full` names what had reached a cap: queues, `*`, and `queues` for their number. Damage of either fails no call.
--@include counter: increment
--@include envelope: skill_queue
--@include time: day_s

-- Returns what a task of some bytes counts. Of small ones, those with a certain digit of the id count for 16, so that the
-- others cost no command; the digit is one of the counter in the id.
local function weigh(id, size)
  if size >= 1024 then return size end
  return string.byte(id, 21) == 48 and 16 * size or 0
end

-- Returns whether the arguments of an envelope may be a field of their own.
local function is_apart(envelope)
  return string.find(envelope, '\2args ', 1, true) ~= nil
end

-- Returns the bytes of a stored task, large arguments included.
local function stored_size(task_key, envelope)
  return #envelope + (is_apart(envelope) and redis.call('HSTRLEN', task_key, 'args') or 0)
end

-- Collects a task that begins to wait (`by` is 1) or does not wait any longer (-1): `changes` maps queues to bytes.
local function collect_bytes(pool, changes, id, queue, envelope, by)
  envelope = envelope or ''
  queue = queue or skill_queue(envelope)
  changes[queue] = (changes[queue] or 0) + by * weigh(id, stored_size(pool .. ':task:' .. id, envelope))
end

-- Returns a stored number of bytes; 0 for none or a damaged one.
local function bytes_in(stored)
  local bytes = tonumber(stored or nil)
  return bytes and bytes >= 0 and bytes < 1e15 and bytes or 0
end

-- Returns the bytes of a queue and of the pool.
local function read_bytes(pool, queue)
  local stored = redis.pcall('HMGET', pool .. ':queues:bytes', queue, '*')
  return bytes_in(stored[1]), bytes_in(stored[2])
end

-- Returns the number of queues.
local function count_queues(pool)
  return tonumber(redis.pcall('SCARD', pool .. ':queues')) or 0
end

-- Returns whether something that a task of a queue needs had reached a cap.
local function is_full(pool, queue)
  local marks = redis.pcall('SMISMEMBER', pool .. ':queues:full', queue, '*', 'queues')
  return marks[1] == 1 or marks[2] == 1 or marks[3] == 1
end

-- Marks what has reached a cap; later calls look at the numbers.
local function mark_cap(pool, name)
  redis.pcall('SADD', pool .. ':queues:full', name)
  redis.call('EXPIRE', pool .. ':queues:full', day_s)
end

-- Removes the marks of a queue and of the pool, and with `queues` that of the number of queues.
local function unmark_caps(pool, queue, queues)
  redis.pcall('SREM', pool .. ':queues:full', queue, '*', queues and 'queues' or queue)
end

-- Adds to the bytes of queues and of the pool. What is taken from a queue beyond its number, because a program of an older
-- version did not add it, is not taken from the pool, which holds the other queues too.
local function add_bytes(pool, changes)
  local bytes_key, gone, change_of_pool = pool .. ':queues:bytes', {}, 0
  for queue, change in pairs(changes) do
    if change ~= 0 then
      local left = increment(bytes_key, queue, change)
      if left <= 0 then gone[#gone + 1] = queue end
      change_of_pool = change_of_pool + change - math.min(left, 0)
    end
  end
  if change_of_pool ~= 0 and increment(bytes_key, '*', change_of_pool) <= 0 then gone[#gone + 1] = '*' end
  if #gone > 0 then redis.pcall('HDEL', bytes_key, unpack(gone)) end
end
