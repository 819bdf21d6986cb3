#!lua flags=allow-oom
-- Cancels tasks. A waiting or unread task ends at once; a running one is marked, and its worker is notified, so that
-- the worker stops the task before its next renewal.
-- status, per id: ended | signalled | already state | unknown
-- repeat: returns already, or signalled again
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: id
local reason  = ARGV[2]                   -- str: shown to the client
local now_arg = ARGV[3]                   -- time: test override, microseconds
--@include time: now_us
--@include ending: start_endings, flush_endings
--@include cancel: start_cancelling, cancel_task, flush_cancelling

local ending, cancelling = start_endings(now_us(now_arg)), start_cancelling()
local answers = {}
for i = 1, #rows do
  answers[2 * i - 1], answers[2 * i] = cancel_task(pool, ending, cancelling, rows[i].id, reason)
end
flush_cancelling(pool, cancelling)
flush_endings(pool, ending)
return answers
