"""The signals by which handlers decide how an attempt ends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchestrator import Reject, Retry, Snooze
from orchestrator.core.errors import InvalidInput


def test_retry_takes_a_delay_or_leaves_it_to_the_skill() -> None:
    """Seconds or timedelta, rounded up to milliseconds; none means the skill's back-off."""
    assert Retry().delay_ms is None
    assert Retry(delay=0).delay_ms == 0
    assert Retry(delay=timedelta(milliseconds=1.5), reason="busy").delay_ms == 2
    assert str(Retry(reason="busy")) == "busy"


def test_snooze_takes_a_delay_or_a_time() -> None:
    """Exactly one of both."""
    noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
    assert (Snooze(2).delay_ms, Snooze(2).at_ms) == (2000, 0)
    assert (Snooze(until=noon).delay_ms, Snooze(until=noon).at_ms) == (0, round(noon.timestamp() * 1000))
    with pytest.raises(TypeError, match="either"):
        Snooze()
    with pytest.raises(TypeError, match="either"):
        Snooze(1, until=noon)


@pytest.mark.parametrize("delay", [-1, float("nan"), "soon", True])
def test_delays_that_cannot_be_meant_are_refused(delay: Any) -> None:
    """The refusal is raised in the handler, where the mistake is."""
    with pytest.raises(InvalidInput, match="delay"):
        Retry(delay)
    with pytest.raises(InvalidInput, match="delay"):
        Snooze(delay)


def test_naive_times_are_refused() -> None:
    """A time without a zone is refused."""
    with pytest.raises(InvalidInput, match="until has no time zone"):
        Snooze(until=datetime(2030, 1, 1))  # noqa: DTZ001


def test_reasons_are_texts_whatever_is_given() -> None:
    """An exception or a number as reason becomes its text."""
    cause: Any = ValueError("wrong")
    assert Reject(cause).reason == "wrong"
    assert Retry(reason=cause).reason == "wrong"
    assert Snooze(1, reason=cause).reason == "wrong"
