-- Fair shares of keys: start-time fair queueing between the keys of a queue, at each priority (protocol rule 35).
-- A flow, `QUEUE:RANK:KEY`, holds the waiting tasks of a key. The first of them also stands in the queue, so that the queue is
-- looked at; the line of the queue says whose turn it is then: the flow with the least start tag. Each start adds 1 / weight
-- to the tag. A flow whose key has as many tasks running as it may rests: nothing of it stands in the queue.
--@include time: day_s, integer
--@include record: rank_of
--@include queue: add_scored, add_to_queue, remove_from_queue

-- Flows without a task, or at rest, that the choices of this call may still pass over.
local passes_left = 300

-- Flows of a key that the end of one task wakes.
local most_woken = 500

-- Returns the flow of a task.
local function flow_of(queue, key, rank)
  return queue .. ':' .. integer(rank_of(rank)) .. ':' .. key
end

-- Returns where a task goes that becomes ready: its queue, or `=` and its flow.
local function ready_place(queue, key, rank)
  return key and '=' .. flow_of(queue, key, rank) or queue
end

-- Returns line, key and queue of a flow; no queue for a name that is none of a flow.
local function parse_flow(flow)
  local line, key = string.match(flow, '^(.*):([^:]*)$')
  return line, key, string.match(line or '', '^(.*):%-?%d+$')
end

-- Returns the weight of a key, and how many of its tasks may run at a time (nil: any number). The numbers come first in the
-- command, so that no text of it is read for them.
local function share_of(pool, key)
  local value = redis.call('HGET', pool .. ':desired', 'share:' .. key)
  if not value or string.byte(value) ~= 49 then return 1, nil end
  local numbers = string.match(value, '{"kind":"set%-share",(.-)"key":') or ''
  return tonumber(string.match(numbers, '"weight":([%d.]+)')) or 1, tonumber(string.match(numbers, '"at_most":(%d+)'))
end

-- Returns whether another task of a key may run.
local function may_start(pool, key, at_most)
  return not at_most or redis.call('SCARD', pool .. ':share:taken:' .. key) < at_most
end

-- Adds to a sum of `share:keys` or `share:queues`; a sum of 0 leaves the set.
local function count_share(sums_key, member, by)
  if tonumber(redis.call('ZINCRBY', sums_key, by, member)) <= 0 then redis.call('ZREM', sums_key, member) end
end

-- Puts the first task of a flow into its queue, and the flow into the line of the queue: not before those that wait there.
local function stand(pool, flow)
  local first = redis.call('ZRANGE', pool .. ':share:wait:' .. flow, 0, 0, 'WITHSCORES')
  if not first[1] then
    redis.call('SREM', pool .. ':share:flows', flow)
    return
  end
  local line, key, queue = parse_flow(flow)
  local line_key = pool .. ':share:line:' .. line
  if not redis.call('ZSCORE', line_key, key) then
    redis.call('ZADD', line_key, redis.call('ZRANGE', line_key, 0, 0, 'WITHSCORES')[2] or 0, key)
    redis.call('EXPIRE', line_key, day_s)
  end
  if add_to_queue(pool, queue, {first[2], first[1]}) > 0 then count_share(pool .. ':share:queues', queue, -1) end
end

-- Adds ready tasks to a flow: `scored` is a flat list score, id, score, id ...
local function join_flow(pool, flow, scored)
  local _, key, queue = parse_flow(flow)
  local wait_key = pool .. ':share:wait:' .. flow
  local is_new = redis.call('EXISTS', wait_key) == 0
  local added = add_scored(wait_key, scored)
  if added > 0 then
    count_share(pool .. ':share:keys', key, added)
    count_share(pool .. ':share:queues', queue, added)
  end
  -- A flow with tasks stands in its queue, or rests.
  if is_new then
    redis.call('SADD', pool .. ':share:flows', flow)
    stand(pool, flow)
  end
end

-- Removes a task from its flow and its queue; the next one of the flow takes its stand. Returns whether the flow had it.
local function leave_flow(pool, flow, id)
  if redis.call('ZREM', pool .. ':share:wait:' .. flow, id) == 0 then return false end
  local _, key, queue = parse_flow(flow)
  count_share(pool .. ':share:keys', key, -1)
  if redis.call('ZSCORE', pool .. ':queue:' .. queue, id) then
    stand(pool, flow)
    remove_from_queue(pool, queue, {id})
  else
    count_share(pool .. ':share:queues', queue, -1)
    if redis.call('EXISTS', pool .. ':share:wait:' .. flow) == 0 then redis.call('SREM', pool .. ':share:flows', flow) end
  end
  return true
end

-- Notes that a task of a key runs, or is on its way to a worker.
local function take_place(pool, key, id)
  if redis.call('SADD', pool .. ':share:taken:' .. key, id) == 1 then count_share(pool .. ':share:keys', key, 1) end
end

-- Notes that a task no longer runs, if it did. `collector` gathers the keys for `wake_flows`.
local function free_place(pool, collector, key, id)
  if redis.call('SREM', pool .. ':share:taken:' .. key, id) == 0 then return end
  count_share(pool .. ':share:keys', key, -1)
  collector.freed = collector.freed or {}
  collector.freed[key] = true
end

-- Lets resting flows of these keys stand in their queues again: all of them, because a key has one for each queue and priority.
local function wake_flows(pool, keys)
  for key in pairs(keys) do
    local flows = redis.call('SPOP', pool .. ':share:rest:' .. key, most_woken)
    for i = 1, #flows do stand(pool, flows[i]) end
  end
end

-- Wakes the flows of the key whose share a slot of the desired state defines; other slots change nothing.
local function wake_share(pool, slot)
  local key = string.match(slot, '^share:(.*)$')
  if key then wake_flows(pool, {[key] = true}) end
end

-- Returns weight and cap of a key as this call has read them.
local function known_share(pool, run, key)
  local share = run.known_shares[key]
  if not share then
    share = {share_of(pool, key)}
    run.known_shares[key] = share
  end
  return share
end

-- Returns key, first task and its score of the flow in a line whose turn it is; nil if none of the first ones may start.
-- Flows without tasks leave the line: their tag is the least, so it is what they would get again.
local function next_flow(pool, run, line)
  local line_key = pool .. ':share:line:' .. line
  while true do
    local key = redis.call('ZRANGE', line_key, 0, 0)[1]
    if not key then return nil end
    local first = redis.call('ZRANGE', pool .. ':share:wait:' .. line .. ':' .. key, 0, 0, 'WITHSCORES')
    if first[1] and may_start(pool, key, known_share(pool, run, key)[2]) then return key, first[1], first[2] end
    if passes_left == 0 then return nil end
    passes_left = passes_left - 1
    redis.call('ZREM', line_key, key)
    if first[1] then redis.call('SADD', pool .. ':share:rest:' .. key, line .. ':' .. key) end
  end
end

-- Returns flow, id and score of the task whose turn it is when `assign` meets a task of a key in a queue; nil: the met task
-- leaves the queue, because its flow rests.
local function take_turn(pool, run, flow, id, score)
  local line, key, queue = parse_flow(flow)
  local line_key = pool .. ':share:line:' .. line
  local chosen, first, its_score = next_flow(pool, run, line)
  if not chosen or (chosen ~= key and not redis.call('ZSCORE', line_key, key)) then
    if redis.call('ZADD', pool .. ':share:wait:' .. flow, 'NX', score, id) == 1 then
      redis.call('SADD', pool .. ':share:flows', flow)
      count_share(pool .. ':share:keys', key, 1)
    end
    if not may_start(pool, key, known_share(pool, run, key)[2]) then
      redis.call('ZREM', line_key, key)
      redis.call('SADD', pool .. ':share:rest:' .. key, flow)
      count_share(pool .. ':share:queues', queue, 1)
      return nil
    end
    -- The line was lost, or does not know the flow.
    stand(pool, flow)
    if not chosen then return flow, id, score end
  end
  return line .. ':' .. chosen, first, its_score
end

-- Takes a task out of its flow and its queue, after it got a turn: it was assigned (`started`), or has another place.
local function end_turn(pool, run, flow, id, started)
  local line, key, queue = parse_flow(flow)
  local waited = redis.call('ZREM', pool .. ':share:wait:' .. flow, id) == 1
  if started then
    redis.call('SADD', pool .. ':share:taken:' .. key, id)
    if not waited then count_share(pool .. ':share:keys', key, 1) end
    redis.call('ZADD', pool .. ':share:line:' .. line, 'XX', 'INCR', 1 / known_share(pool, run, key)[1], key)
  elseif waited then
    count_share(pool .. ':share:keys', key, -1)
  end
  -- The next one comes before this one leaves, so that the queue is not new to supervisors.
  stand(pool, flow)
  if redis.call('ZREM', pool .. ':queue:' .. queue, id) == 0 and waited then count_share(pool .. ':share:queues', queue, -1) end
end
