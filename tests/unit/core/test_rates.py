"""Rates are read from their short form and written back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from orchestrator.core.errors import InvalidInput
from orchestrator.core.rates import Rate, parse_rate
from tests.helpers.cases import each_case


@each_case(
    ("given", "rate"),
    [
        ("10/s", Rate(10, 1_000_000)),
        ("10/min", Rate(10, 60_000_000)),
        (" 1 / h ", Rate(1, 3_600_000_000)),
        ("1000000/d", Rate(1_000_000, 86_400_000_000)),
        ((3, timedelta(seconds=90)), Rate(3, 90_000_000)),
        ((1, timedelta(milliseconds=1)), Rate(1, 1_000)),
        (Rate(2, 5_000), Rate(2, 5_000)),
    ],
)
def test_rates_are_read(given: str | tuple[int, timedelta] | Rate, rate: Rate) -> None:
    """Every documented form gives a count and a window in microseconds."""
    assert parse_rate(given) == rate


@pytest.mark.parametrize("text", ["10/s", "7/min", "1/h", "1000000/d"])
def test_rates_are_written_as_they_were_read(text: str) -> None:
    """The text of a rate is its short form."""
    assert str(parse_rate(text)) == text


def test_a_rate_without_a_unit_is_readable() -> None:
    """A window of its own is written in seconds."""
    assert str(parse_rate((3, timedelta(seconds=90)))) == "3 per 90s"


@each_case(
    "given",
    ["", "10", "10/", "/s", "10/sec", "10/minute", "-1/s", "1.5/s", "10/s/s", "\u0661/s", None, 10, (1,), ("1", 2)],
)
def test_other_forms_are_refused(given: str) -> None:
    """What is not understood is refused with the forms that are."""
    with pytest.raises(InvalidInput, match="is not understood; write '10/s'"):
        parse_rate(given)


def test_a_boolean_is_no_count() -> None:
    """True is not the number one."""
    with pytest.raises(InvalidInput, match="not understood"):
        parse_rate((True, timedelta(seconds=1)))


@pytest.mark.parametrize("given", ["0/s", "1000001/s", (0, timedelta(seconds=1))])
def test_counts_out_of_bounds_are_refused(given: str | tuple[int, timedelta]) -> None:
    """A rate of nothing would stop an agent for ever."""
    with pytest.raises(InvalidInput, match="between 1 and 1,000,000"):
        parse_rate(given)


@pytest.mark.parametrize(
    "window", [timedelta(0), timedelta(seconds=-1), timedelta(microseconds=999), timedelta(days=32)]
)
def test_windows_out_of_bounds_are_refused(window: timedelta) -> None:
    """A window lies between a millisecond and a month."""
    with pytest.raises(InvalidInput, match="between 1 ms and 31 days"):
        parse_rate((1, window))
