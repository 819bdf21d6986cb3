"""Amounts: what is read as one, and what is refused with a sentence."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from orchestrator.core.amounts import MICRO, MOST, Amounts, parse_amount, parse_amounts, show_amount
from orchestrator.core.errors import InvalidInput


@pytest.mark.parametrize(
    ("given", "micro"),
    [
        (2, 2 * MICRO),
        (0.05, 50_000),
        ("2M", 2_000_000 * MICRO),
        ("200k", 200_000 * MICRO),
        (".5", 500_000),
        ("1_000", 1000 * MICRO),
        (Decimal("0.000001"), 1),
        (0.1 + 0.2, 300_000),
        (0, 0),
    ],
)
def test_amounts_are_whole_millionths(given: Any, micro: int) -> None:
    """Numbers and texts with a suffix are read, and rounded to millionths."""
    assert parse_amount("usd", given) == micro


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (-1, "must not be negative"),
        ("-0.5", "must not be negative"),
        (float("nan"), "must be a finite number"),
        (float("inf"), "must be a finite number"),
        ("nan", "is not understood"),
        ("1e3", "is not understood"),
        ("", "is not understood"),
        (True, "must be a number"),
        (None, "must be a number"),
        (MOST, "must be at most 9,007,199,254"),
        (Decimal("1e999999"), "must be at most 9,007,199,254"),
    ],
)
def test_what_is_no_amount(given: Any, said: str) -> None:
    """Anything else is refused, and the message names the unit."""
    with pytest.raises(InvalidInput, match=f"^usd .*{said}"):
        parse_amount("usd", given)


def test_units() -> None:
    """Amounts are in the order of the units; an unknown unit is refused with the known ones."""
    assert parse_amounts({"calls": 2, "usd": None}) == Amounts(calls=2 * MICRO)
    with pytest.raises(InvalidInput, match="unit 'eur' is not known; use usd, tokens, calls, seconds"):
        parse_amounts({"eur": 1})
    assert Amounts(usd=50_000, tokens=8000 * MICRO).readable == "0.05 usd, 8000 tokens"
    assert (show_amount(0), show_amount(1), show_amount(1_250_000)) == ("0", "0.000001", "1.25")
    assert (show_amount(10, grouped=True), show_amount(MOST, grouped=True)) == ("0.00001", "9,007,199,254.740991")
