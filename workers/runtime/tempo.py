"""How fast an agent's tasks are, and so whether entries may wait in its inbox (protocol rule 15).

The 95th percentile decides, not the mean: one slow task in twenty is enough to keep a critical one waiting.
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


class Tempo:
    """Watches run times; calls `changed` when the wished backlog does."""

    def __init__(self, *, limited: bool, changed: Callable[[], None]) -> None:
        self.backlog = 0
        self._limited, self._changed = limited, changed
        self._slow: deque[bool] = deque()
        self._slow_count = 0

    def took(self, seconds: float) -> None:
        """Note the run time of one attempt."""
        if self._limited:
            return
        slow = seconds > FAST_S
        self._slow.append(slow)
        self._slow_count += slow
        if len(self._slow) > WINDOW:
            self._slow_count -= self._slow.popleft()
        backlog = int(len(self._slow) >= ENOUGH and self._slow_count <= len(self._slow) * SLOW_SHARE)
        if backlog != self.backlog:
            self.backlog = backlog
            self._changed()
