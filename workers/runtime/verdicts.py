"""What an exception means for a task: from whatever a handler raised to the verdict that is stored."""

from __future__ import annotations

import traceback
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from orchestrator.core.errors import AskExpired, ServerFull, ServerUnavailable
from orchestrator.core.log import get_logger
from orchestrator.tasks.model import Delivery, Envelope, Verdict, VerdictKind
from orchestrator.workers.signals import Asked, Reject, Retry, Snooze

if TYPE_CHECKING:
    from orchestrator.core.backoff import Backoff
    from orchestrator.workers.skill import Skill

ERROR_BYTES: Final = 8192
"""A traceback is cut to this, in the middle: its ends say most."""
REASON_CHARS: Final = 500

OUTAGE_BACKOFF_STEP: Final = 3
"""A task that met an outage comes back after the delay of this many failures."""

MAX_OUTAGE_RETRIES: Final = 10
"""A task is put off so often by one worker for want of an answer; for want of memory without end."""
REMEMBERED: Final = 10_000

_log = get_logger(__name__)


class OutageRetries:
    """How often each task was put off by this worker; forgets the oldest of very many."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, int] = OrderedDict()

    def count(self, task_id: str) -> bool:
        """Count a task that is to be put off, unless it has been too often."""
        times = self._times.pop(task_id, 0) + 1
        if times > MAX_OUTAGE_RETRIES:
            return False
        self._times[task_id] = times
        if len(self._times) > REMEMBERED:
            self._times.popitem(last=False)
        return True


class OutagePolicy(msgspec.Struct, frozen=True):
    """What one attempt is to be judged by.

    Attributes:
        ours: whether the pool's Redis was full, or did not answer this worker, while the attempt ran.
    """

    task_id: str
    ours: bool
    retries: OutageRetries

    def exempts(self, failure: BaseException) -> bool:
        """Whether `failure` is about the pool's Redis and costs no attempt."""
        if not self.ours:
            return False
        if isinstance(failure, ServerFull):
            return True
        return isinstance(failure, ServerUnavailable) and self.retries.count(self.task_id)


class ValidationFailed(Exception):
    """Arguments or a result that do not fit, found in a handler's process: another attempt would end the same way."""


class HandlerRaised(Exception):
    """What a handler raised in its process, as texts: one line, and the traceback."""

    def __init__(self, line: str, trace: bytes) -> None:
        super().__init__(line)
        self.line, self.trace = line, trace


def rejected(reason: str) -> Verdict:
    """A dead letter at once: another attempt would end the same way."""
    return Verdict(VerdictKind.DEAD, _cut(reason), reason=one_line(reason))


def failed(
    failure: BaseException,
    delivery: Delivery,
    *,
    skill: Skill[Any, Any],
    envelope: Envelope,
    backoff: Backoff,
    outage: OutagePolicy,
) -> Verdict:
    """The verdict of an attempt whose handler raised `failure`.

    Args:
        failure: a signal (`Retry`, `Snooze`, `Reject`) or anything else.
        delivery: the attempt.
        skill: decides about attempts and delays, unless the task does.
        envelope: of the task.
        backoff: the delays of a skill that says nothing else.
        outage: whether a failing Redis was the pool's own, and how often the task has been put off for that.
    """
    raised, failure = failure, sole(failure)
    if isinstance(failure, Snooze):
        reason = one_line(failure.reason)
        return Verdict(VerdictKind.SNOOZE, delay_ms=failure.delay_ms, at_ms=failure.at_ms, reason=reason)
    if isinstance(failure, Reject):
        return rejected(failure.reason)
    if isinstance(failure, ValidationFailed):
        return rejected(str(failure))
    reason = describe(failure)
    if isinstance(failure, AskExpired):
        # Another attempt would end the same way: the deadline stays over.
        return Verdict(VerdictKind.DEAD, traceback_of(raised), reason=reason)
    if outage.exempts(failure):
        # Redis failed, not the task: no attempt counted (protocol rule 25).
        return Verdict(VerdictKind.SNOOZE, delay_ms=round(backoff.delay_s(OUTAGE_BACKOFF_STEP) * 1000), reason=reason)
    log = _log.bind(task=delivery.task_id, agent=delivery.agent, attempt=delivery.attempt)
    failures = delivery.failures
    if failures >= (envelope.max_attempts or skill.options.max_attempts):
        log.error("task_failed", reason=reason)
        return Verdict(VerdictKind.DEAD, traceback_of(raised), reason=reason)
    delay_ms = failure.delay_ms if isinstance(failure, Retry) else None
    if delay_ms is None:
        delay_ms = skill.retry_after_ms(failures, backoff)
    log.warning("attempt_failed", reason=reason, retry_in_ms=delay_ms)
    return Verdict(VerdictKind.RETRY, traceback_of(raised), delay_ms=delay_ms, reason=reason)


def has_asked(ended: object) -> bool:
    """Whether an attempt was ended by its question, also one that was asked in a task group beside other failures."""
    if isinstance(ended, BaseExceptionGroup):
        return any(has_asked(one) for one in ended.exceptions)
    return isinstance(ended, Asked)


def sole(failure: BaseException) -> BaseException:
    """What was raised, when a task group has wrapped that alone: it means what it means without the group."""
    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    return failure


def one_line(text: str) -> str:
    """A text for people, on one line and cut to a bearable length."""
    return " ".join(text.encode(errors="replace").decode().split())[:REASON_CHARS]


def describe(failure: BaseException) -> str:
    """One line about an exception, even about one whose text cannot be made."""
    failure = sole(failure)
    if isinstance(failure, HandlerRaised):
        return failure.line
    try:
        text = str(failure)
        if isinstance(failure, BaseExceptionGroup):
            text = "; ".join([text, *(describe(one) for one in failure.exceptions)])
    except Exception:  # noqa: BLE001 - handlers may raise anything
        text = "(its message could not be made)"
    name = type(failure).__name__
    return one_line(f"{name}: {text}" if text else name)


def traceback_of(failure: BaseException) -> bytes:
    """The traceback as text, cut to a bearable size."""
    if isinstance(cause := sole(failure), HandlerRaised):
        return cause.trace
    try:
        text = "".join(traceback.format_exception(failure))
    except Exception:  # noqa: BLE001 - handlers may raise anything
        text = f"{type(failure).__name__}: (its traceback could not be made)"
    return _cut(text)


def _cut(text: str) -> bytes:
    data = text.encode(errors="replace")
    if len(data) <= ERROR_BYTES:
        return data
    half = ERROR_BYTES // 2
    return data[:half] + b"\n...\n" + data[-half:]
