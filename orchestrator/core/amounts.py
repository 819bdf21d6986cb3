"""Amounts of money, tokens, calls and seconds, counted in millionths as whole numbers below 2^53."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from orchestrator.core.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

UNITS: Final = ("usd", "tokens", "calls", "seconds")
"""The units of a budget, in the order in which scripts have them."""
MICRO: Final = 1_000_000
"""Parts of one unit."""
MOST: Final = 2**53 - 1
"""The largest amount, in millionths."""
Amount: TypeAlias = int | float | Decimal | str
"""A number, or a text such as `2M` or `0.05`."""

_TEXT: Final = re.compile(r"\s*([+-]?[0-9][0-9_]*(?:\.[0-9]+)?|[+-]?\.[0-9]+)\s*([kKmMgG]?)\s*")
_FACTORS: Final = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}


class Amounts(NamedTuple):
    """Amounts of all units, in millionths."""

    usd: int = 0
    tokens: int = 0
    calls: int = 0
    seconds: int = 0

    @property
    def packed(self) -> str:
        """The text that scripts read."""
        return " ".join(map(str, self))

    @property
    def readable(self) -> str:
        """The amounts that are not 0: `0.05 usd, 8000 tokens`."""
        parts = [f"{show_amount(value)} {unit}" for unit, value in zip(UNITS, self, strict=True) if value]
        return ", ".join(parts) or "nothing"

    @property
    def plain(self) -> dict[str, float]:
        """The amounts that are not 0, by unit."""
        return {unit: value / MICRO for unit, value in zip(UNITS, self, strict=True) if value}


NOTHING: Final = Amounts()
"""No amount of any unit."""


def parse_amount(unit: str, value: Amount) -> int:
    """Return an amount in millionths.

    Raises:
        InvalidInput: it is no number, not finite, negative, or too large.
    """
    number = _number(unit, value)
    if not number.is_finite():
        raise InvalidInput(f"{unit} must be a finite number, not {value!r}")
    if number < 0:
        raise InvalidInput(f"{unit} must not be negative, and is {value!r}")
    # A number with a large exponent would take long to become an integer.
    micro = int((number * MICRO).to_integral_value()) if number <= MOST else MOST + 1
    if micro > MOST:
        raise InvalidInput(f"{unit} must be at most {MOST // MICRO:,}, and is {value!r}")
    return micro


def parse_amounts(values: Mapping[str, Amount | None]) -> Amounts:
    """Return the amounts of a mapping of units; None counts as 0.

    Raises:
        InvalidInput: an unknown unit, or an amount that `parse_amount` refuses.
    """
    for unit in values:
        if unit not in UNITS:
            raise InvalidInput(f"unit {unit!r} is not known; use {', '.join(UNITS)}")
    return Amounts(*(parse_amount(unit, amount) if (amount := values.get(unit)) is not None else 0 for unit in UNITS))


def show_amount(micro: int, *, grouped: bool = False) -> str:
    """Format an amount as a number without needless digits: `1.25`; `grouped` separates thousands: `2,000,000`."""
    whole, rest = divmod(micro, MICRO)
    said = f"{whole:,}" if grouped else str(whole)
    return f"{said}.{rest:06d}".rstrip("0") if rest else said


def _number(unit: str, value: Amount) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal, str)):
        raise InvalidInput(f"{unit} must be a number, not {value!r}")
    if isinstance(value, str):
        found = _TEXT.fullmatch(value)
        if found is None:
            raise InvalidInput(f"{unit} {value!r} is not understood; write a number such as 0.05, 200k or 2M")
        return Decimal(found[1].replace("_", "")) * _FACTORS[found[2].lower()]
    try:
        return Decimal(value) if isinstance(value, Decimal) else Decimal(str(value))
    except InvalidOperation:
        raise InvalidInput(f"{unit} must be a number, not {value!r}") from None
