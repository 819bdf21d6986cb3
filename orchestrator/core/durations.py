"""Converts durations and times of callers to numbers, and refuses invalid ones."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from orchestrator.core.errors import InvalidInput

Duration: TypeAlias = float | timedelta
"""Seconds as a number, or a `timedelta`."""

MAX_DURATION_S: Final = 100 * 365 * 86_400
"""A century. A longer duration is a mistake (often milliseconds), and this one still fits a Redis score exactly."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_LAST_MS: Final = 253_402_300_799_999
"""End of the year 9999. A damaged record may hold a later time."""


def to_seconds(name: str, value: Duration) -> float:
    """Convert a duration to seconds.

    Args:
        name: name of the value in errors.
        value: seconds or `timedelta`, zero or more.

    Raises:
        InvalidInput: negative, not finite, longer than a century, or not a number (`True` included).
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidInput(f"{name} must be seconds or a timedelta, not {type(value).__name__}")
    if not -MAX_DURATION_S <= value <= MAX_DURATION_S:  # also NaN; compared before float(), which huge ints overflow
        finite = isinstance(value, int) or math.isfinite(value)
        problem = "is longer than a hundred years" if finite else "is not a finite number"
        raise InvalidInput(f"{name} {problem}; give seconds or a timedelta")
    if value < 0:
        raise InvalidInput(f"{name} must not be negative: {value:g} s")
    return float(value)


def to_ms(name: str, value: Duration) -> int:
    """Convert a duration to whole milliseconds, rounded up, so that a short wait never becomes 0.

    Raises:
        InvalidInput: as `to_seconds`.
    """
    # Via microseconds: 0.1 s is 100 ms, although 0.1 * 1000 may be slightly more.
    return -(-round(to_seconds(name, value) * 1_000_000) // 1_000)


def instant_ms(name: str, value: datetime) -> int:
    """Convert an aware time to milliseconds since 1970.

    Raises:
        InvalidInput: no time zone, not a time, or before 1970.
    """
    if not isinstance(value, datetime):
        raise InvalidInput(f"{name} must be a datetime with a time zone, not {type(value).__name__}")
    if value.utcoffset() is None:
        raise InvalidInput(f"{name} has no time zone: {value.isoformat()}; use datetime.now(UTC) or set tzinfo")
    at_ms = (value - _EPOCH) // _MILLISECOND
    if at_ms < 0:
        raise InvalidInput(f"{name} lies before 1970: {value.isoformat()}")
    return at_ms


def from_instant_ms(at_ms: int) -> datetime:
    """Convert milliseconds since 1970 to an aware UTC time, at most that of Python's last year."""
    return _EPOCH + timedelta(milliseconds=min(max(at_ms, 0), _LAST_MS))


def in_words(seconds: float) -> str:
    """Format a duration in its largest unit, as all times that people read: `3 s`, `6 min`, `2 h`, `4 d`."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(max(0.0, seconds))} s"
