"""Limits what a process does about refused commands, because anyone who can write to Redis can add thousands."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from orchestrator.core.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.control.entries import ControlEntry

LOGGED_EVERY_S: Final = 10.0
_MINUTE_S: Final = 60.0
_log = get_logger(__name__)


class Refusals:
    """Counts refused commands.

    Args:
        per_minute: how many of them are worth a record.
    """

    def __init__(self, per_minute: int) -> None:
        self._per_minute, self._left, self._refill_s = per_minute, 0, 0.0
        self._count, self._log_s = 0, 0.0

    def take(self, refused: Sequence[ControlEntry]) -> Sequence[ControlEntry]:
        """Return the commands to record: the first ones in each minute. Log the number of all now and then."""
        if not refused:
            return refused
        now_s = time.monotonic()
        self._count += len(refused)
        if now_s >= self._log_s:
            self._log_s = now_s + LOGGED_EVERY_S
            _log.warning("commands_refused", count=self._count, entry=refused[0].entry, problem=refused[0].problem)
            self._count = 0
        if now_s >= self._refill_s:
            self._left, self._refill_s = self._per_minute, now_s + _MINUTE_S
        taken = refused[: self._left]
        self._left -= len(taken)
        return taken
