"""Decides by the run times of an agent's tasks whether entries may wait in its inbox (protocol rule 15).

The 95th percentile decides, not the mean, because one slow task in twenty is enough to delay an urgent one.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

FAST_S: Final = 0.05
WINDOW: Final = 128
ENOUGH: Final = 32
SLOW_SHARE: Final = 0.05


class Throughput:
    """Computes the backlog of an agent from its run times.

    Args:
        limited: the agent has a rate limit, and so no backlog.
        changed: called when the backlog changes.
    """

    def __init__(self, *, limited: bool, changed: Callable[[], None]) -> None:
        self.backlog = 0
        self._limited, self._changed = limited, changed
        self._seen = 0
        self._slow: deque[int] = deque()
        """Numbers of the slow attempts within the window."""

    def record_duration(self, seconds: float) -> None:
        """Add the run time of one attempt."""
        if self._limited:
            return
        self._seen += 1
        if seconds > FAST_S:
            self._slow.append(self._seen)
        elif self.backlog:
            return  # a fast attempt cannot end the backlog
        while self._slow and self._slow[0] <= self._seen - WINDOW:
            self._slow.popleft()
        known = min(self._seen, WINDOW)
        backlog = int(known >= ENOUGH and len(self._slow) <= known * SLOW_SHARE)
        if backlog != self.backlog:
            self.backlog = backlog
            self._changed()
