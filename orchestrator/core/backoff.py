"""Computes growing delays with full jitter."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from orchestrator.core.errors import InvalidInput, OrchestratorError

RandomSource: TypeAlias = Callable[[], float]
"""Returns numbers from 0 (included) to 1 (excluded), as `random.random` does."""

QUICK_RETRIES: Final = 20
"""Failures in a row after which `StoreError.retry_within_s` no longer bounds the pauses."""


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Delays before the next attempt: the ceiling doubles from `base_s` to `cap_s`, and jitter picks a delay below it.

    Full jitter (from zero to the ceiling) spreads callers that failed together better than a fixed delay with noise.
    """

    base_s: float = 1.0
    cap_s: float = 300.0
    factor: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.base_s <= self.cap_s or self.factor < 1:
            raise InvalidInput(
                f"back-off needs 0 <= base_s <= cap_s and factor >= 1, got base_s={self.base_s}, cap_s={self.cap_s}, "
                f"factor={self.factor}"
            )

    def ceiling_s(self, failures: int) -> float:
        """Return the longest delay after this many failures (1 = the first)."""
        if failures < 1:
            return 0.0
        # The power would overflow; every sensible cap is reached before.
        return min(self.cap_s, self.base_s * self.factor ** min(failures - 1, 64))

    def delay_s(self, failures: int, source: RandomSource = random.random) -> float:
        """Return a random delay after this many failures (1 = the first)."""
        return self.ceiling_s(failures) * source()


class QuickRetries:
    """Shortens the first pauses after failures that are usually over in a moment; see `StoreError.retry_within_s`.

    A cluster that stays down or a replica that stays one must not be asked so often: after `QUICK_RETRIES` such
    failures, about two seconds, the bound doubles with each one.
    """

    def __init__(self) -> None:
        self._failures = 0

    def shorten(self, delay_s: float, failure: BaseException | None) -> float:
        """Record a failure and return `delay_s` or its bound."""
        longest_s: float | None = getattr(failure, "retry_within_s", None)
        if longest_s is None:
            return delay_s
        self._failures += 1
        return min(delay_s, math.ldexp(longest_s, min(max(self._failures - QUICK_RETRIES, 0), 16)))


class Pauses:
    """Pauses of a loop that meets failures: short after the first one, longer while failures follow each other.

    The first pause is a few milliseconds, because most failures are a single cut connection. The cap limits the load on
    a server that is down, and full jitter keeps clients from coming back in step.

    Args:
        cap_s: longest pause.
    """

    def __init__(self, *, cap_s: float = 1.0) -> None:
        self._backoff = ExponentialBackoff(base_s=0.02, cap_s=cap_s)
        self._failures = 0
        self._quick = QuickRetries()

    def next_s(self, failure: OrchestratorError | None = None) -> float:
        """Record a failure and return the delay before the next try.

        Args:
            failure: may shorten the delay; see `StoreError.retry_within_s`.
        """
        self._failures += 1
        return self._quick.shorten(self._backoff.delay_s(self._failures), failure)

    def reset(self) -> None:
        """Count a success."""
        self._failures, self._quick = 0, QuickRetries()
