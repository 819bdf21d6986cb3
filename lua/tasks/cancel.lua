#!lua flags=allow-oom
-- Cancels tasks. A waiting or unread task ends at once; a running one is marked, and its worker is notified, so that
-- the worker stops the task before its next renewal. Notes the tasks that have children, for `cancel_children`.
-- status, per id: ended | signalled | already state | unknown
-- returns: the statuses with their states; then 1 if any task has children to cancel, else 0
-- repeat: returns already, or signalled again
local pool      = KEYS[1]                   -- key: root of the pool's slot
local rows      = cmsgpack.unpack(ARGV[1])  -- rows: id
local reason    = ARGV[2]                   -- str: shown to the client
local only_this = ARGV[3]                   -- str: 1: their children go on
local now_arg   = ARGV[4]                   -- time: test override, microseconds
--@include time: now_us
--@include ending: start_endings, flush_endings
--@include cancel: start_cancelling, cancel_task, flush_cancelling, reason_below, note_children

local ending, cancelling = start_endings(now_us(now_arg)), start_cancelling()
local answers, any_children = {}, 0
for i = 1, #rows do
  local id = rows[i].id
  answers[2 * i - 1], answers[2 * i] = cancel_task(pool, ending, cancelling, id, reason)
  -- Also of a task that has ended: its children may not have.
  if only_this ~= '1' and note_children(pool, id, reason_below(id, reason)) then any_children = 1 end
end
flush_cancelling(pool, cancelling)
flush_endings(pool, ending)
answers[#answers + 1] = any_children
return answers
