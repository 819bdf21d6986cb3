"""Pauses of a loop that met a failure: short after the first one, longer while failures follow each other."""

from __future__ import annotations

from orchestrator.core.backoff import Backoff


class Pauses:
    """Counts failures in a row.

    The first pause is a few milliseconds, because most failures are a single cut connection; the cap keeps a fleet from
    hammering a server that is down, and full jitter keeps it from coming back in step.

    Args:
        cap_s: no pause is longer.
    """

    def __init__(self, *, cap_s: float = 1.0) -> None:
        self._backoff = Backoff(base_s=0.02, cap_s=cap_s)
        self._failures = 0

    def next_s(self) -> float:
        """Note a failure; answer how long to pause after it."""
        self._failures += 1
        return self._backoff.delay_s(self._failures)

    def reset(self) -> None:
        """Note a success."""
        self._failures = 0
