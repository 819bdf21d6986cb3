"""How a test says how far time moves."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orchestrator.core.errors import InvalidInput
from orchestrator.workers.testing.team import span_ms
from tests.helpers.cases import each_case


@each_case(
    ("by", "parts", "wanted_ms"),
    [
        ("1h", {}, 3_600_000),
        ("1h 30min", {}, 5_400_000),
        ("1h30m", {}, 5_400_000),
        ("2d", {}, 172_800_000),
        ("1w", {}, 604_800_000),
        ("1.5s", {}, 1500),
        ("250 ms", {}, 250),
        (90, {}, 90_000),
        (timedelta(minutes=2), {}, 120_000),
        (0, {"hours": 1, "minutes": 1, "seconds": 1, "days": 1}, 90_061_000),
        ("1s", {"minutes": 1}, 61_000),
    ],
)
def test_spans_are_read(by: Any, parts: dict[str, float], wanted_ms: int) -> None:
    """Texts with units, numbers of seconds, timedeltas and named parts; they add up."""
    assert span_ms(by, **parts) == wanted_ms


@each_case("by", ["", "1", "h", "1 month", "1h!", "-1h", -1, 0, timedelta(-1), "1hour", float("nan")])
def test_what_is_no_span_is_refused(by: Any) -> None:
    """Nothing, less than nothing, and unknown units are refused with a sentence."""
    with pytest.raises(InvalidInput, match=r"span of time|must not be negative|how far|finite"):
        span_ms(by)
