"""What an exception says about its provider: forms of Retry-After, quotas, failures; anything else says nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchestrator import InvalidInput, ProviderFailed, QuotaExhausted, Throttled
from orchestrator.workers import provider_answers
from orchestrator.workers.provider_answers import MAX_PAUSE_S, Told, is_failure, read_told
from tests.helpers.http_provider import HttpFailure

AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
AT_MS = round(AT.timestamp() * 1000)
DATE = "Wed, 02 Jan 2030 03:04:05 GMT"


class ForeignError(Exception):
    """An exception of another library, with any attributes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__("foreign")
        vars(self).update(attributes)


def throttled(for_ms: int = 0, until_ms: int = 0) -> tuple[str, int, int]:
    """A pause."""
    return "throttled", for_ms, until_ms


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Throttled(2), throttled(2000)),
        (Throttled(timedelta(milliseconds=1500)), throttled(1500)),
        (Throttled(AT), throttled(0, AT_MS)),
        (ForeignError(retry_after=0.0005), throttled(1)),
        (ForeignError(retry_after="7"), throttled(7000)),
        (ForeignError(retry_after=DATE), throttled(0, AT_MS)),
        (ForeignError(retry_after=1e12), throttled(round(MAX_PAUSE_S * 1000))),
        (HttpFailure(429, {"retry-after": " 3 "}), throttled(3000)),
        (HttpFailure(503, {"Retry-After": DATE}), throttled(0, AT_MS)),
        (HttpFailure(429, {"RETRY-AFTER": DATE, "Date": "Wed, 02 Jan 2030 03:04:00 GMT"}), throttled(5000)),
        (HttpFailure(429, {"retry-after-ms": "250", "retry-after": "1"}), throttled(250)),
        (ForeignError(headers={b"Retry-After": b"4"}), throttled(4000)),
        (QuotaExhausted(), ("quota", 0, 0)),
        (QuotaExhausted(60), ("quota", 60_000, 0)),
        (QuotaExhausted(AT), ("quota", 0, AT_MS)),
        (ForeignError(code="insufficient_quota", response=None), ("quota", 0, 0)),
        (HttpFailure(402, {}), ("quota", 0, 0)),
        (Throttled(0), throttled(1000)),
        (QuotaExhausted(0), ("quota", 1000, 0)),
        (ForeignError(retry_after=0), throttled(1000)),
        (HttpFailure(429, {}), throttled(1000)),
        (HttpFailure(429, {"retry-after": "0"}), throttled(1000)),
        (HttpFailure(429, {"retry-after": DATE, "date": DATE}), throttled(1000)),
        (HttpFailure(429, {"retry-after": DATE, "date": "Thu, 03 Jan 2030 03:04:00 GMT"}), throttled(1000)),
        (HttpFailure(429, {"retry-after": "x" * 10_000}), throttled(1000)),
        (HttpFailure(429, {"retry-after": "Wed, 99 Jan 2030 03:04:05 GMT"}), throttled(1000)),
    ],
    ids=repr,
)
def test_pauses(failure: Exception, expected: tuple[str, int, int]) -> None:
    """Seconds, durations, instants and both forms of the header; a date counts from the header Date, if given."""
    told = read_told(failure)
    assert told is not None
    assert (told.state, told.for_ms, told.until_ms) == expected


@pytest.mark.parametrize(
    "failure",
    [
        ValueError(),
        ForeignError(retry_after=None),
        ForeignError(retry_after=-1),
        ForeignError(retry_after=float("nan")),
        ForeignError(retry_after=True),
        ForeignError(retry_after="soon"),
        ForeignError(retry_after=datetime(2030, 1, 1)),  # noqa: DTZ001 - a time without a zone tells nothing
        ForeignError(code=[]),
        ForeignError(headers=3, response=4),
        HttpFailure(404, {"retry-after": "x" * 10_000}),
        HttpFailure(404, {"retry-after": "Wed, 99 Jan 2030 03:04:05 GMT"}),
        KeyboardInterrupt(),
    ],
    ids=lambda failure: repr(failure)[:60],
)
def test_nothing_is_told(failure: BaseException) -> None:
    """Anything else tells no pause, and raises nothing."""
    assert read_told(failure) is None


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (ProviderFailed(), True),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (HttpFailure(500, {}), True),
        (HttpFailure(529, {}), True),
        (type("APITimeoutError", (Exception,), {})(), True),
        (HttpFailure(404, {}), False),
        (HttpFailure(429, {}), False),
        (ValueError(), False),
    ],
    ids=repr,
)
def test_failures(failure: Exception, expected: bool) -> None:  # noqa: FBT001 - a column of the table
    """No answer, or a status from 500 on, is a failure of the provider; the handler's own exceptions are not."""
    assert is_failure(failure) is expected


@pytest.mark.parametrize("wrong", [-1, float("nan"), "soon", None, datetime(2030, 1, 1)])  # noqa: DTZ001
def test_refused(wrong: Any) -> None:
    """A pause that is no time is refused where it is made."""
    with pytest.raises(InvalidInput):
        Throttled(wrong)
    if wrong is not None:
        with pytest.raises(InvalidInput):
            QuotaExhausted(wrong)


def test_reasons() -> None:
    """The reason is one line of at most 200 characters."""
    assert read_told(Throttled(1, "too\nmany")) == Told("throttled", 1000, 0, "Throttled: too many")
    told = read_told(Throttled(1, "x" * 900))
    assert told is not None
    assert len(told.reason) == 200


def test_redacted_reasons() -> None:
    """The text of an exception of a redacted skill is not in the reason."""
    told = read_told(Throttled(1, "iban 123"), redact=True)
    assert told == Told("throttled", 1000, 0, "Throttled: (redacted)")


def test_a_secret_at_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known secret that the cut would divide is masked before."""
    monkeypatch.setattr(provider_answers, "mask_known", lambda text: text.replace("SECRET-123", "********"))
    told = read_told(Throttled(1, "x" * 184 + "SECRET-123"))
    assert told is not None
    assert "SEC" not in told.reason
