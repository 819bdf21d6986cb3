"""Parses rate limits such as `10/min` into a count and a window."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from orchestrator.core.errors import InvalidInput

_UNIT_US: Final = {"s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_TEXT: Final = re.compile(r"\s*([0-9]{1,9})\s*/\s*(s|min|h|d)\s*")
_MAX_COUNT: Final = 1_000_000
_MIN_WINDOW_US: Final = 1_000
_MAX_WINDOW_US: Final = 31 * _UNIT_US["d"]
_AMOUNT: Final = re.compile(r"\s*([0-9]{1,12})([kM]?)\s*/\s*(s|min|h|d)\s*")
_TIMES: Final = {"": 1, "k": 1_000, "M": 1_000_000}
_MAX_AMOUNT: Final = 1_000_000_000_000
_FORMS: Final = "'10/s', '10/min', '10/h', '10/d' or (10, timedelta(...))"


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `count` starts in every window of `window_us` microseconds."""

    count: int
    window_us: int

    def __str__(self) -> str:
        """Format as `10/min`, which `parse_rate` reads; a window without a unit of its own as `10 per 90s`."""
        if self.count >= ANY_STARTS.count and self.window_us == ANY_STARTS.window_us:
            return "any"
        for unit, window_us in _UNIT_US.items():
            if self.window_us == window_us:
                return f"{self.count}/{unit}"
        return f"{self.count} per {self.window_us / 1_000_000:g}s"


ANY_STARTS: Final = Rate(1_000_000_000, 1_000)
"""Definition of a limit that limits no starts, which older programs can read, too."""


def parse_rate(value: str | tuple[int, timedelta] | Rate) -> Rate:
    """Parse a rate limit.

    Args:
        value: `"10/s"`, `"10/min"`, `"10/h"`, `"10/d"`, or a count with its window.

    Raises:
        InvalidInput: another form, a count outside 1 to 1,000,000, or a window outside 1 ms to 31 days.
    """
    match value:
        case Rate():
            return _checked(value.count, value.window_us, value)
        case str():
            found = _TEXT.fullmatch(value)
            if found is None:
                raise InvalidInput(f"rate {value!r} is not understood; write {_FORMS}")
            return _checked(int(found[1]), _UNIT_US[found[2]], value)
        case (int(count), timedelta() as window) if not isinstance(count, bool):
            return _checked(count, window // timedelta(microseconds=1), value)
        case _:
            raise InvalidInput(f"rate {value!r} is not understood; write {_FORMS}")


def parse_amount(value: str) -> Rate:
    """Parse an amount per time, such as the tokens of a model: `500/min`, `200k/min` or `2M/d`.

    Raises:
        InvalidInput: another form, or an amount outside 1 to 1,000,000,000,000.
    """
    found = _AMOUNT.fullmatch(value)
    if found is None:
        raise InvalidInput(f"amount {value!r} is not understood; write '500/min', '200k/min' or '2M/d'")
    amount = int(found[1]) * _TIMES[found[2]]
    if not 1 <= amount <= _MAX_AMOUNT:
        raise InvalidInput(f"amount {value!r} must lie between 1 and {_MAX_AMOUNT:,}")
    return Rate(amount, _UNIT_US[found[3]])


def _checked(count: int, window_us: int, given: object) -> Rate:
    if not 1 <= count <= _MAX_COUNT:
        raise InvalidInput(f"rate {given!r} allows {count} starts; the count must lie between 1 and {_MAX_COUNT:,}")
    if not _MIN_WINDOW_US <= window_us <= _MAX_WINDOW_US:
        raise InvalidInput(f"rate {given!r} has a window of {window_us} µs; it must lie between 1 ms and 31 days")
    return Rate(count, window_us)
