"""Reads how far a test moves time: `"1h 30min"`, seconds, a `timedelta`, or named parts."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

from orchestrator.core.durations import to_ms
from orchestrator.core.errors import InvalidInput

_UNITS: Final = {
    "ms": "milliseconds", "s": "seconds", "min": "minutes", "m": "minutes", "h": "hours", "d": "days", "w": "weeks",
}  # fmt: skip
_PART: Final = re.compile(rf"\s*(\d+(?:\.\d+)?)\s*({'|'.join(_UNITS)})(?![a-z])")


def span_ms(by: str | float | timedelta, **parts: float) -> int:
    """Read a span as milliseconds.

    Args:
        by: as above.
        parts: days, hours, minutes, seconds on top.

    Raises:
        InvalidInput: that is no span, it is negative, or it is nothing at all.
    """
    span = _read(by) if isinstance(by, str) else by
    total_ms = to_ms("time to move", span) + to_ms("time to move", timedelta(**parts))
    if total_ms == 0:
        raise InvalidInput('say how far time moves: "1h", 90 (seconds), timedelta(hours=1), or hours=1')
    return total_ms


def _read(text: str) -> timedelta:
    total, at = timedelta(), 0
    while part := _PART.match(text, at):
        total += timedelta(**{_UNITS[part[2]]: float(part[1])})
        at = part.end()
    if at == 0 or text[at:].strip():
        raise InvalidInput(f'{text!r} is no span of time; write it as "90s", "10min", "1h 30min", "2d" or "1w"')
    return total
