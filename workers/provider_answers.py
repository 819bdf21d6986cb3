"""Reads what an exception of a call says about its provider: a pause, no quota, or a failure of the provider."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.durations import instant_ms, to_seconds
from orchestrator.core.errors import InvalidInput
from orchestrator.core.redaction import name_of
from orchestrator.core.scrubbing import mask_known
from orchestrator.limits.providers import QUOTA, THROTTLED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.core.durations import Duration

MAX_PAUSE_S: Final = 31 * 86_400.0
"""Longest pause that is kept."""
_REASON_CHARS: Final = 200
_READ_CHARS: Final = 128 * 1024
"""Characters of a text that are searched for secrets before it is cut."""
SHORT_MS: Final = 1000
"""Pause of an answer that tells to wait and names no time, or one that has passed."""
_TOO_MANY: Final = 429
_NO_QUOTA: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
_PAYMENT_REQUIRED: Final = 402
_SERVER_ERRORS: Final = range(500, 600)
_UNREACHABLE: Final = frozenset(
    {"APIConnectionError", "APITimeoutError", "TransportError", "ClientConnectionError", "ServerTimeoutError"}
)
"""Classes of exceptions of clients of HTTP that mean that no answer came (openai, anthropic, httpx, aiohttp)."""


class Throttled(Exception):
    """Raised by a handler inside `ctx.provider`: the provider told to wait. Holds all workers of the pool back.

    Args:
        retry_after: seconds or timedelta from now, or an aware datetime.
        reason: one line, shown to operators.

    Raises:
        InvalidInput: that is no time.
    """

    def __init__(self, retry_after: Duration | datetime, reason: str = "") -> None:
        super().__init__(reason or "the provider told to wait")
        _check("retry_after", retry_after)
        self.retry_after, self.reason = retry_after, reason


class QuotaExhausted(Exception):
    """Raised by a handler inside `ctx.provider`: the quota is used up. Holds all workers of the pool back.

    Args:
        reset: when there is quota again: seconds or timedelta from now, or an aware datetime; None: when an operator
            runs `orc limits clear`.
        reason: one line, shown to operators.

    Raises:
        InvalidInput: that is no time.
    """

    def __init__(self, reset: Duration | datetime | None = None, reason: str = "") -> None:
        super().__init__(reason or "the quota of the provider is used up")
        if reset is not None:
            _check("reset", reset)
        self.reset, self.reason = reset, reason


class ProviderFailed(Exception):
    """Raised by a handler inside `ctx.provider`: the provider failed, which counts towards its breaker."""


def _check(name: str, given: Duration | datetime) -> None:
    instant_ms(name, given) if isinstance(given, datetime) else to_seconds(name, given)


@dataclass(frozen=True, slots=True)
class Told:
    """A pause that a provider told.

    Attributes:
        state: `throttled` or `quota`.
        for_ms: its length from now; 0: `until_ms` has the end.
        until_ms: the end; 0 without `for_ms`: an operator ends it.
        reason: one line, without known secrets.
    """

    state: str
    for_ms: int
    until_ms: int
    reason: str = ""


def read_told(failure: BaseException, *, redact: bool = False) -> Told | None:
    """Return what an exception says; None if it tells no pause; `redact` leaves its text out."""
    told = _told(failure)
    return None if told is None else replace(told, reason=_line(failure, redact=redact))


def is_failure(failure: BaseException) -> bool:
    """Return whether an exception means that the provider failed: no answer came, or one with a status from 500 on."""
    if isinstance(failure, ProviderFailed | ConnectionError | TimeoutError):
        return True
    if any(kind.__name__ in _UNREACHABLE for kind in type(failure).__mro__):
        return True
    return isinstance(failure, Exception) and _status(failure) in _SERVER_ERRORS


def single(failure: BaseException) -> Iterator[BaseException]:
    """Return the exceptions of a group and of the groups in it; an exception that is no group alone."""
    if isinstance(failure, BaseExceptionGroup):
        for one in failure.exceptions:
            yield from single(one)
    else:
        yield failure


def _told(failure: BaseException) -> Told | None:
    if not isinstance(failure, Exception):
        return None
    if isinstance(failure, QuotaExhausted):
        if failure.reset is None:
            return Told(QUOTA, 0, 0)
        return _pause(QUOTA, failure.reset, None)
    code = _get(failure, "code")
    if (isinstance(code, str) and code in _NO_QUOTA) or _status(failure) == _PAYMENT_REQUIRED:
        return Told(QUOTA, 0, 0)
    given = _get(failure, "retry_after")
    if given is not None and (told := _pause(THROTTLED, given, None)):
        return told
    response = _get(failure, "response")
    for headers in (_get(response, "headers"), _get(failure, "headers")):
        milliseconds, after = _header(headers, "retry-after-ms"), _header(headers, "retry-after")
        number = None if milliseconds is None else _number(milliseconds)
        if number is not None and (told := _pause(THROTTLED, number / 1000, None)):
            return told
        if after is not None and (told := _pause(THROTTLED, after, _header(headers, "date"))):
            return told
    return Told(THROTTLED, SHORT_MS, 0) if _status(failure) == _TOO_MANY else None


def _pause(state: str, given: object, sent: str | None) -> Told | None:
    """Return a pause of a number, a duration, an instant or the text of a header; None if it is none of these."""
    if isinstance(given, timedelta):
        given = given.total_seconds()
    if isinstance(given, str):
        number = _number(given)
        given = number if number is not None else _date(given)
        told_at = None if sent is None else _date(sent)
        if isinstance(given, datetime) and told_at is not None:
            # Both are by the clock of the provider, which may differ from that of Redis.
            given = max(0.0, (given - told_at).total_seconds())
    if isinstance(given, datetime):
        try:
            return Told(state, 0, instant_ms("retry_after", given))
        except InvalidInput:
            return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given) or given < 0:
        return None
    return Told(state, math.ceil(min(given, MAX_PAUSE_S) * 1000) or SHORT_MS, 0)


def _status(failure: BaseException) -> int:
    for owner, names in ((_get(failure, "response"), ("status_code", "status")), (failure, ("status_code", "status"))):
        for name in names:
            found = _get(owner, name)
            if isinstance(found, int):
                return found
    return 0


def _get(owner: object, name: str) -> Any:
    """Return an attribute of an object of another library; None if there is none, or if reading it fails."""
    try:
        return getattr(owner, name, None)
    except Exception:  # noqa: BLE001 - a property may raise anything
        return None


def _header(headers: object, name: str) -> str | None:
    try:
        for found, value in headers.items():  # type: ignore[attr-defined]
            if _text(found).lower() == name:
                return _text(value).strip()
    except Exception:  # noqa: BLE001 - these are no headers
        return None
    return None


def _text(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _date(text: str) -> datetime | None:
    with suppress(ValueError, TypeError, OverflowError):
        found = parsedate_to_datetime(text)
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return None


def _line(failure: BaseException, *, redact: bool) -> str:
    if redact:
        return name_of(failure)
    try:
        text = str(failure)
    except Exception:  # noqa: BLE001 - handlers may raise anything
        text = ""
    name = type(failure).__name__
    # A secret that a cut divides would not be found.
    masked = mask_known((f"{name}: {text}" if text else name)[:_READ_CHARS])
    return " ".join(masked.split())[:_REASON_CHARS]
