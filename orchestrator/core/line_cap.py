"""Bounds how many log lines about single tasks a process writes, and counts those that it leaves out.

A line costs as much processor time as several short tasks, and a reader follows a few dozen a second.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PERIOD_S: Final = 1.0


class LineCap:
    """Admits some lines in each period of a second. Used in an event loop only.

    Args:
        most: lines that a period admits.
        tell: called at the end of a period with the lines that it left out, by event.
    """

    def __init__(self, most: int, tell: Callable[[Mapping[str, int]], None]) -> None:
        self._most, self._tell = most, tell
        self._lines = 0
        self._left_out: dict[str, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def admits(self, event: str, lines: int = 1) -> bool:
        """Return whether lines may be written now; the caller writes them, or they count as left out."""
        if self._lines >= self._most:
            self.leave_out(event)
            return False
        self._lines += lines
        self._start()
        return True

    def leave_out(self, event: str) -> None:
        """Count a line that is not written."""
        self._left_out[event] = self._left_out.get(event, 0) + 1
        self._start()

    def _start(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self.flush)

    def flush(self) -> None:
        """End the period, and tell what it left out."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._lines = 0
        if self._left_out:
            left_out, self._left_out = self._left_out, {}
            self._tell(left_out)
