"""Counts the attempts of a worker per agent and skill; the heartbeat sends the counts.

The event loop counts and the heartbeat thread reads, without a lock: counts only grow, and the thread sends what was
added since the last batch that Redis has stored. A worker that is killed loses the counts since its last heartbeat.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from orchestrator.agents.timings import BUCKETS, CELLS, OUTCOMES, RAN_MS, RUNS, WAITED_MS, WAITS
from orchestrator.core.ids import task_ms
from orchestrator.tasks.model import VerdictKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.workers.runtime.attempt import Attempt

LAST: Final = BUCKETS - 1
_SUCCEEDED: Final = VerdictKind.SUCCEEDED
"""The usual end. A look-up of a member of an enum takes 0.1 µs on Python 3.11."""
LOST: Final = OUTCOMES.index("lost")
_OUTCOMES: Final[Mapping[VerdictKind, int]] = {
    VerdictKind.SUCCEEDED: OUTCOMES.index("succeeded"),
    VerdictKind.RETRY: OUTCOMES.index("failed"),
    VerdictKind.DEAD: OUTCOMES.index("dead"),
    VerdictKind.CANCELLED: OUTCOMES.index("cancelled"),
    VerdictKind.SNOOZE: OUTCOMES.index("snoozed"),
    VerdictKind.ASK: OUTCOMES.index("asked"),
    VerdictKind.JOIN: OUTCOMES.index("joining"),
    VerdictKind.REQUEUE: OUTCOMES.index("requeued"),
    VerdictKind.INVALID: OUTCOMES.index("invalid"),
}
"""Outcomes of attempts. RELEASED and AWAIT_LOCK are no outcome: the handler has not begun, and the task waits on."""
MAX_ROWS: Final = 32
"""Pairs of agent and skill in one batch: Redis needs about 1 ms for them."""
_NONE: Final = [0] * CELLS

Row = tuple[str, str, list[int]]
"""Agent, skill, and a flat list of cells and counts."""


class AttemptTimings:
    """Counters of one worker."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str], list[int]] = {}
        self._stored: dict[tuple[str, str], list[int]] = {}
        self._batch: tuple[int, dict[tuple[str, str], list[int]], list[Row]] | None = None
        self._number = self._next = 0
        self._time_digits, self._time_ms = "-", 0
        """The time in the id of the last task, as digits and in ms."""
        self._clock_ms = (time.time() - time.monotonic()) * 1000
        """The time of the server at the monotonic time 0; until it is known, that of this machine."""
        self.knows_clock = False

    # ------------------------------------------------------------------------------------------------ the event loop

    def record(self, attempt: Attempt, verdict: VerdictKind | None, *, ready_ms: int | None = None) -> int | None:
        """Count an attempt that has ended, and return the ms that its task was ready before; None if unknown.

        Args:
            attempt: the attempt.
            verdict: None if another worker has its task.
            ready_ms: since when the task was ready, by the clock of the server; 0 if that is unknown; None for the time
                of its submit.
        """
        if verdict is _SUCCEEDED:
            outcome: int | None = 0
        else:
            outcome = LOST if verdict is None else _OUTCOMES.get(verdict)
        delivery, skill, ran_s = attempt.delivery, attempt.envelope.skill, attempt.ran_s
        if outcome is None or not skill:
            return None
        cells = self._cells.get((delivery.agent, skill))
        if cells is None:
            cells = self._cells[delivery.agent, skill] = [0] * CELLS
        cells[outcome] += 1
        if ran_s is None:
            return None
        ran_ms = int(ran_s * 1000)
        cells[RAN_MS] += ran_ms
        cells[RUNS + min(ran_ms.bit_length(), LAST)] += 1
        if ready_ms is None and delivery.attempt == 1:
            # Tasks that were submitted together have the same time.
            if not delivery.task_id.startswith(self._time_digits):
                self._time_digits, self._time_ms = delivery.task_id[:13], task_ms(delivery.task_id)
            ready_ms = self._time_ms
        if not ready_ms:
            return None
        waited_ms = int(self._clock_ms + attempt.begun_s * 1000) - ready_ms
        waited_ms = max(waited_ms, 0)
        cells[WAITED_MS] += waited_ms
        cells[WAITS + min(waited_ms.bit_length(), LAST)] += 1
        return waited_ms

    # ------------------------------------------------------------------------------------------- the heartbeat thread

    def next_batch(self) -> tuple[int, list[Row]]:
        """Return what was counted since the last stored batch, or the batch that was sent and maybe not stored.

        A batch begins with the pair behind the last one of the batch before, so that many busy pairs take turns.
        """
        if self._batch is None:
            copied, rows = dict[tuple[str, str], list[int]](), list[Row]()
            pairs, first = list(self._cells.items()), self._next
            for number, (key, growing) in enumerate(pairs[first:] + pairs[:first], first + 1):
                cells, stored = growing.copy(), self._stored.get(key, _NONE)
                if cells != stored:
                    added = [(cell, now - then) for cell, (now, then) in enumerate(zip(cells, stored, strict=True))]
                    copied[key] = cells
                    rows.append((*key, [value for pair in added if pair[1] for value in pair]))
                    if len(rows) == MAX_ROWS:
                        self._next = number % len(pairs)
                        break
            if not rows:
                return self._number, []
            self._number += 1
            self._batch = self._number, copied, rows
        return self._batch[0], self._batch[2]

    def batch_stored(self) -> None:
        """Note that Redis has the batch."""
        if self._batch is not None:
            self._stored |= self._batch[1]
            self._batch = None

    def set_clock(self, now_ms: int, asked_s: float, answered_s: float) -> None:
        """Compare the clock of the server with the monotonic one."""
        self._clock_ms, self.knows_clock = now_ms - (asked_s + answered_s) * 500, True
