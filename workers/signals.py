"""Exceptions that a handler raises to end its attempt in a certain way. Any other exception is a failure."""

from __future__ import annotations

from datetime import datetime, timedelta  # noqa: TC003 - part of public signatures

from orchestrator.core.durations import instant_ms, to_ms


class AttemptSignal(Exception):
    """Base of `Retry`, `Snooze` and `Reject`."""

    reason: str = ""
    raised_at: str = ""
    """File and line where a handler's process raised it."""


class Retry(AttemptSignal):
    """Retry the task later; counts as a failed attempt.

    Args:
        delay: seconds or timedelta; by default the skill's back-off.
        reason: one line, stored with the task.
    """

    delay_ms: int | None = None

    def __init__(self, delay: float | timedelta | None = None, reason: str = "") -> None:
        super().__init__(reason or "the handler raised Retry")
        self.delay_ms = None if delay is None else to_ms("delay", delay)
        self.reason: str = str(reason)


class Snooze(AttemptSignal):
    """Run the task again later; counts no attempt.

    Args:
        delay: seconds or timedelta from now.
        until: an aware datetime, instead of `delay`.
        reason: one line, stored with the task.
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
    """Ends an attempt that has asked a person. `ctx.ask` raises it; do not catch it.

    It derives from BaseException, so that an `except Exception` around the question lets it pass. If the handler does
    catch it, the attempt still ends with the question, and the worker ignores what the handler returns or raises.
    """


class Joining(BaseException):
    """Ends an attempt while tasks that it joins have not ended. `ctx.join` raises it; do not catch it.

    It derives from BaseException, as `Asked` does, and as with `Asked` the attempt ends even if the handler catches it.
    """


class Reject(AttemptSignal):
    """Make the task a dead letter at once.

    Args:
        reason: one line, stored with the task.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason: str = str(reason)
