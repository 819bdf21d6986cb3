"""Measures how late timers of the event loop are."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.monitoring.catalogue import LAG_BUCKETS_S

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY_S: Final = 0.5
RECENT: Final = 10
"""Measurements that `recent_s` looks at: those of about 5 s."""
READY_BELOW_S: Final = 1.0
"""Delay from which a process is not ready."""


async def measure_lag(record: Callable[[float], None]) -> None:
    """Sleep again and again, and record by how much each sleep was too long, until cancelled."""
    while True:
        asked_s = time.monotonic()
        await anyio.sleep(EVERY_S)
        record(max(0.0, time.monotonic() - asked_s - EVERY_S))


class LoopLag:
    """Counts delays in buckets."""

    def __init__(self) -> None:
        self.counts = [0] * (len(LAG_BUCKETS_S) + 1)
        self.sum_s = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)

    @property
    def recent_s(self) -> float:
        """The longest delay of the last seconds."""
        return max(self._recent, default=0.0)

    def record(self, delay_s: float) -> None:
        """Count one delay."""
        self.counts[bisect_left(LAG_BUCKETS_S, delay_s)] += 1
        self.sum_s += delay_s
        self._recent.append(delay_s)
