"""Durations and instants are converted exactly, and slips are refused by name."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.durations import MAX_DURATION_S, Duration, from_instant_ms, instant_ms, to_ms, to_seconds
from orchestrator.core.errors import InvalidInput
from tests.helpers.cases import each_case


@each_case(("value", "seconds"), [(0, 0.0), (5, 5.0), (0.25, 0.25), (timedelta(minutes=2), 120.0), (-0.0, 0.0)])
def test_durations_are_seconds(value: Duration, seconds: float) -> None:
    """Numbers are seconds; a timedelta is what it says."""
    assert to_seconds("delay", value) == seconds


@each_case(
    ("value", "ms"),
    [(0, 0), (0.1, 100), (0.3, 300), (1.001, 1001), (0.0001, 1), (timedelta(microseconds=1), 1), (2.5, 2500)],
)
def test_durations_are_milliseconds(value: Duration, ms: int) -> None:
    """Milliseconds are exact where they can be, and rounded up where not: a wait never becomes none."""
    assert to_ms("delay", value) == ms


@given(st.integers(0, MAX_DURATION_S * 1000))
def test_whole_milliseconds_are_exact(ms: int) -> None:
    """What is a whole number of milliseconds stays that number."""
    assert to_ms("delay", ms / 1000) == ms


@each_case(
    ("value", "reason"),
    [
        (-1, "must not be negative: -1 s"),
        (timedelta(seconds=-1), "must not be negative"),
        (math.nan, "not a finite number"),
        (math.inf, "not a finite number"),
        (-math.inf, "not a finite number"),
        (True, "seconds or a timedelta, not bool"),
        ("5", "seconds or a timedelta, not str"),
        (None, "seconds or a timedelta, not NoneType"),
        (1_700_000_000_000, "longer than a hundred years"),
        (10**400, "longer than a hundred years"),
        (-(10**400), "longer than a hundred years"),
        (timedelta.max, "longer than a hundred years"),
    ],
)
def test_slips_are_refused(value: Duration, reason: str) -> None:
    """The message names the argument and what is wrong with it."""
    with pytest.raises(InvalidInput, match=rf"^result_ttl .*({reason})"):
        to_seconds("result_ttl", value)


def test_instants_are_milliseconds_of_their_zone() -> None:
    """The same moment in two zones is the same number."""
    moment = datetime(2026, 3, 1, 12, 0, 0, 123_999, tzinfo=UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert instant_ms("at", moment) == instant_ms("at", elsewhere) == 1_772_366_400_123


@given(st.datetimes(min_value=datetime(1970, 1, 1), timezones=st.just(UTC)))  # noqa: DTZ001 - the strategy wants it naive
def test_instants_come_back(moment: datetime) -> None:
    """Nothing but the microseconds is lost on the way to Redis and back."""
    assert from_instant_ms(instant_ms("at", moment)) == moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def test_naive_times_are_refused() -> None:
    """A time without a zone could mean any of two dozen moments."""
    with pytest.raises(InvalidInput, match=r"start_by has no time zone: 2026-01-01T00:00:00; use datetime\.now\(UTC\)"):
        instant_ms("start_by", datetime(2026, 1, 1))  # noqa: DTZ001 - what is tested


@pytest.mark.parametrize("value", [datetime(1969, 12, 31, tzinfo=UTC), 1_700_000_000, "2026-01-01T00:00Z", None])
def test_what_is_no_instant_is_refused(value: datetime) -> None:
    """Times before 1970, numbers and texts are refused."""
    with pytest.raises(InvalidInput, match=r"at (lies before 1970|must be a datetime)"):
        instant_ms("at", value)
