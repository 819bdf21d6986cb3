"""What a handler raises, or lets pass, to decide how its attempt ends. Any other exception is a failure."""

from __future__ import annotations

from datetime import datetime, timedelta  # noqa: TC003 - part of public signatures

from orchestrator.core.durations import instant_ms, to_ms


class AttemptSignal(Exception):
    """Base of the three signals."""

    reason: str = ""


class Retry(AttemptSignal):
    """Try again later; counts as a failed attempt.

    Args:
        delay: seconds or timedelta; by default the skill's back-off.
        reason: one line for people.
    """

    delay_ms: int | None = None

    def __init__(self, delay: float | timedelta | None = None, reason: str = "") -> None:
        super().__init__(reason or "retry asked for")
        self.delay_ms = None if delay is None else to_ms("delay", delay)
        self.reason: str = str(reason)


class Snooze(AttemptSignal):
    """Come back later; counts no attempt.

    Args:
        delay: seconds or timedelta from now.
        until: an aware time instead.
        reason: one line for people.
    """

    delay_ms: int = 0
    at_ms: int = 0

    def __init__(
        self, delay: float | timedelta | None = None, *, until: datetime | None = None, reason: str = ""
    ) -> None:
        super().__init__(reason or "snoozed")
        if (delay is None) == (until is None):
            raise TypeError("Snooze takes either delay= or until=")
        self.delay_ms = 0 if delay is None else to_ms("delay", delay)
        self.at_ms = 0 if until is None else instant_ms("until", until)
        self.reason: str = str(reason)


class Asked(BaseException):
    """Ends an attempt that has asked a person; `ctx.ask` raises it, and nobody needs to catch it.

    No `Exception`, so that an `except Exception` around the question lets it pass. Whoever swallows it all the same
    changes nothing: what the handler does from then on, and what it returns or raises, does not count.
    """


class Reject(AttemptSignal):
    """Give up at once: the task becomes a dead letter.

    Args:
        reason: one line for people.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: str = str(reason)
