"""Watches over the time of one attempt: its deadline, and how long it may go without a sign of life."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Callable


class TimeLimits:
    """Calls `over` with `late` or `silent` when the time of an attempt is over. Exists only where there is a limit.

    One timer serves both limits. A sign of life does not touch it: the timer looks when it fires, and goes on if there
    is time left.
    """

    def __init__(
        self,
        *,
        timeout_s: float | None,
        silence_s: float | None,
        over: Callable[[Literal["late", "silent"], float], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._allowed_s = math.inf if timeout_s is None else timeout_s
        self._silence_s = math.inf if silence_s is None else silence_s
        self._over = over
        self._started_s = self._last_sign_s = self._loop.time()
        self._timer = self._loop.call_at(self._due_s(), self._check)

    def _due_s(self) -> float:
        return min(self._started_s + self._allowed_s, self._last_sign_s + self._silence_s)

    def _check(self) -> None:
        due_s = self._due_s()
        if self._loop.time() < due_s:
            self._timer = self._loop.call_at(due_s, self._check)
        elif due_s == self._started_s + self._allowed_s:
            self._over("late", self._allowed_s)
        else:
            self._over("silent", self._silence_s)

    def extend(self, seconds: float) -> None:
        """Move the deadline."""
        self._allowed_s += seconds

    def sign(self) -> None:
        """Note a sign of life."""
        self._last_sign_s = self._loop.time()

    def close(self) -> None:
        """Watch no longer."""
        self._timer.cancel()
