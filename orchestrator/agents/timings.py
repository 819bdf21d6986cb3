"""Defines the counters of attempts per agent and skill: outcomes, and log2 buckets of waiting and running times.

A worker adds to an array of cells per agent and skill; `lua/agents/count.lua` stores the cells that are not 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from orchestrator.core.reading import msgpack_reader

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

OUTCOMES: Final = (
    "succeeded",
    "failed",
    "dead",
    "cancelled",
    "snoozed",
    "asked",
    "requeued",
    "invalid",
    "lost",
    "joining",
)
"""How an attempt ended. `failed` is retried, `dead` is not; `lost` is the attempt of a worker that lost its lease.

`invalid` returned to its queue, because another version of the skill may take its arguments.
"""
BUCKETS: Final = 32
"""Bucket 0 holds times below 1 ms, bucket N those from 2^(N-1) ms to below 2^N ms, the last one all longer ones."""
WAITED_MS: Final = 16
RAN_MS: Final = 17
RECENT_RUNS: Final = 18
RECENT_US: Final = 19
WAITS: Final = 32
RUNS: Final = WAITS + BUCKETS
CELLS: Final = RUNS + BUCKETS
"""Cells: outcomes from 0, sum of the waiting times, sum of the running times, buckets from `WAITS` and `RUNS`.

`timings:TOTAL` has in `RECENT_RUNS` and `RECENT_US` thousandths of attempts and their microseconds, of which an earlier
one counts half after 10 minutes.
"""
MAX_NAMES: Final = 200
"""Pairs of agent and skill that a pool counts by name."""
OTHER: Final = "*"
"""Agent and skill of the pairs beyond `MAX_NAMES`."""
KEPT_MINUTES: Final = 1440
"""Minutes that are kept."""
_decode: Final = msgpack_reader(list[int])


@dataclass(frozen=True, slots=True)
class Durations:
    """Waiting or running times of attempts.

    Attributes:
        count: number of attempts.
        total_ms: sum of the times.
        buckets: attempts per bucket.
    """

    count: int = 0
    total_ms: int = 0
    buckets: tuple[int, ...] = (0,) * BUCKETS

    @property
    def mean_ms(self) -> float | None:
        """The mean; None without attempts."""
        return self.total_ms / self.count if self.count else None

    def quantile_ms(self, share: float) -> int | None:
        """Return a time that at least this share of the attempts did not exceed; None without attempts.

        It is the upper end of a bucket, so it is less than twice the true quantile, except below 1 ms.
        """
        left = max(1, math.ceil(self.count * share))
        for number, count in enumerate(self.buckets):
            left -= count
            if count and left <= 0:
                return 1 << number
        return None


@dataclass(frozen=True, slots=True)
class Timings:
    """Counters of attempts in a span of time.

    Attributes:
        outcomes: attempts by outcome; only those above 0.
        waited: from the time at which a task was ready to the begin of an attempt.
        ran: from the begin to the end of an attempt.
    """

    outcomes: Mapping[str, int] = field(default_factory=dict)
    waited: Durations = Durations()
    ran: Durations = Durations()

    @property
    def attempts(self) -> int:
        """Attempts that ended."""
        return sum(self.outcomes.values())


def sum_cells(parts: Iterable[Sequence[int]]) -> Timings:
    """Add up flat lists of cells and counts, as Redis stores them."""
    cells = [0] * CELLS
    for flat in parts:
        for cell, count in zip(flat[::2], flat[1::2], strict=True):
            if 0 <= cell < CELLS:  # a newer program may count more
                cells[cell] += count
    waits, runs = tuple(cells[WAITS:RUNS]), tuple(cells[RUNS:CELLS])
    return Timings(
        {name: count for name, count in zip(OUTCOMES, cells, strict=False) if count},
        Durations(sum(waits), cells[WAITED_MS], waits),
        Durations(sum(runs), cells[RAN_MS], runs),
    )


def unpack_cells(packed: bytes) -> list[int]:
    """Unpack one list of cells and counts into the count of each cell."""
    cells, flat = [0] * CELLS, _decode(packed)
    for cell, count in zip(flat[::2], flat[1::2], strict=False):  # a damaged list may lack its last count
        if 0 <= cell < CELLS:  # a newer program may count more
            cells[cell] = count
    return cells
