#!lua flags=allow-oom
-- Cancel tasks: one that waits, in a queue or unread in an inbox, ends at once; one that a worker has is marked, and that
-- worker gets a note, so that it stops it now and not at its next renewal.
-- status, per id: ended | signalled | already state | unknown
-- repeat: answers already, or signalled again
local pool    = KEYS[1]                   -- key: root of the pool's slot
local rows    = cmsgpack.unpack(ARGV[1])  -- rows: id
local reason  = ARGV[2]                   -- str: who or why, shown to the client
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
