"""Turns what a handler raised into the verdict of its task."""

from __future__ import annotations

import traceback
from collections import OrderedDict
from random import randint
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from orchestrator.core.errors import (
    AskExpired,
    BudgetExhausted,
    ChildFailed,
    EffectChanged,
    EffectUnknown,
    FormatMismatch,
    JoinChanged,
    JoinTimeout,
    Occupied,
    PayloadError,
    ServerFull,
    ServerUnavailable,
)
from orchestrator.core.redaction import HIDDEN, name_of, traceback_without_texts
from orchestrator.core.scrubbing import mask_known
from orchestrator.tasks.model import UNLIMITED, Delivery, Envelope, Verdict, VerdictKind
from orchestrator.workers.providers import told_pause
from orchestrator.workers.retrying import name_of_class
from orchestrator.workers.signals import Asked, Joining, Reject, Retry, Snooze

if TYPE_CHECKING:
    from orchestrator.core.backoff import ExponentialBackoff
    from orchestrator.workers.skill import Skill

Kinds: TypeAlias = tuple[type, ...] | tuple[str, ...]
"""The classes of one exception, the nearest first; names of classes, if it was raised in another process."""

ERROR_BYTES: Final = 8192
"""Longest traceback; a longer one loses its middle, because its ends say most."""
REASON_CHARS: Final = 500
_READ_CHARS: Final = 128 * 1024
"""Characters at each end of a text that are searched for secrets before it is cut."""

OUTAGE_BACKOFF_STEP: Final = 3
"""A task that met an outage waits as long as after this many failures."""

OCCUPIED_DELAY_MS: Final = (1000, 3000)
"""Range of the random delay of a task whose change met an exclusive owner."""

MAX_OUTAGE_RETRIES: Final = 10
"""How often one worker exempts a task because Redis did not answer. A full Redis always exempts."""
REMEMBERED: Final = 10_000


class OutageRetries:
    """Counts how often this worker exempted each task; forgets the oldest tasks."""

    def __init__(self) -> None:
        self._times: OrderedDict[str, int] = OrderedDict()

    def count(self, task_id: str) -> bool:
        """Record an exemption; return False if the task has had too many."""
        times = self._times.pop(task_id, 0) + 1
        if times > MAX_OUTAGE_RETRIES:
            return False
        self._times[task_id] = times
        if len(self._times) > REMEMBERED:
            self._times.popitem(last=False)
        return True


class OutagePolicy(msgspec.Struct, frozen=True):
    """Decides whether an attempt failed for a reason of the pool, which counts no attempt.

    The pool's own Redis was unavailable, or the pool no longer admits this version of the program, so that
    another worker takes the task. A Redis or another pool of the handler's own is a failure like any other.

    Attributes:
        pool_root: root of the keys of the pool.
        ours: whether the pool's Redis was full, or did not answer this worker, while the attempt ran.
        retries: bounds how often a task is exempted, so that one that never gets an answer still ends.
    """

    task_id: str
    pool_root: str
    ours: bool
    retries: OutageRetries

    def exempts(self, failure: BaseException) -> bool:
        """Return whether `failure` counts no attempt."""
        if isinstance(failure, FormatMismatch):
            return failure.shut_out_of == self.pool_root
        if not self.ours:
            return False
        if isinstance(failure, ServerFull):
            return True
        return isinstance(failure, ServerUnavailable) and self.retries.count(self.task_id)


class ValidationFailed(Exception):
    """A handler's process found invalid arguments or an invalid result; another attempt would end the same way."""


class ArgumentsInvalid(ValidationFailed):
    """A handler's process found invalid arguments; the handler did not start."""


class WorkerFailure(Exception):
    """A failure whose text the worker writes, so that a redacted skill shows it."""


class HandlerRaised(Exception):
    """A handler raised in its process; carries one line, the traceback as text, the classes, and the file and line."""

    def __init__(self, line: str, trace: bytes, kinds: tuple[tuple[str, ...], ...] = (), raised_at: str = "") -> None:
        super().__init__(line)
        self.line, self.trace, self.kinds, self.raised_at = line, trace, kinds, raised_at


def rejected(reason: str) -> Verdict:
    """Return the verdict of a task that becomes a dead letter at once, because a retry would end the same way."""
    return Verdict(VerdictKind.DEAD, _cut(reason), reason=one_line(reason))


def invalid(reason: str, skill: Skill[Any, Any], envelope: Envelope) -> Verdict:
    """Return the verdict of a task whose arguments do not fit this worker's version of the skill.

    It waits while another version of the skill may take the arguments, else it becomes a dead letter.
    """
    try:
        names = tuple(msgspec.json.decode(envelope.args, type=dict[str, msgspec.Raw]))
    except msgspec.DecodeError:
        return rejected(reason)
    version = skill.version.digest
    return Verdict(VerdictKind.INVALID, _cut(reason), reason=one_line(reason), version=version, names=names)


def failed(
    failure: BaseException,
    delivery: Delivery,
    *,
    skill: Skill[Any, Any],
    envelope: Envelope,
    backoff: ExponentialBackoff,
    outage: OutagePolicy,
) -> Verdict:
    """Return the verdict of an attempt whose handler raised `failure`.

    Args:
        failure: a signal (`Retry`, `Snooze`, `Reject`) or any other exception.
        delivery: the attempt.
        skill: its `max_attempts` and back-off are the defaults of the task.
        envelope: of the task.
        backoff: the delays of a skill without its own.
        outage: decides whether the failure counts.
    """
    raised, failure = failure, sole(failure)
    redact = skill.options.redact
    if isinstance(failure, Snooze):
        reason = one_line(HIDDEN if redact and failure.reason else failure.reason)
        most = skill.options.max_snoozes or UNLIMITED
        return Verdict(VerdictKind.SNOOZE, delay_ms=failure.delay_ms, at_ms=failure.at_ms, reason=reason, number=most)
    if isinstance(failure, Reject):
        return rejected(HIDDEN if redact else failure.reason)
    if isinstance(failure, ValidationFailed):
        return rejected(str(failure))
    reason = describe(failure, redact=redact)
    if isinstance(failure, Occupied):
        if failure.deadlock:
            return rejected(str(failure))
        return Verdict(VerdictKind.SNOOZE, delay_ms=randint(*OCCUPIED_DELAY_MS), reason=one_line(str(failure)))
    if told := told_pause(raised, (delivery.task_id, delivery.generation)):
        # A task whose own calls are told to wait each time would hold the pool back without limit.
        most = (skill.options.max_snoozes or UNLIMITED) if told.own else 0
        reason = one_line(told.text) or reason
        return Verdict(VerdictKind.SNOOZE, delay_ms=told.delay_ms, reason=reason, number=most)
    if isinstance(failure, BudgetExhausted):
        # Another attempt would not find more room; the operator retries the task when there is.
        return Verdict(VerdictKind.DEAD, traceback_of(raised, redact=redact), reason=one_line(f"budget: {failure}"))
    if isinstance(failure, (AskExpired, EffectChanged, EffectUnknown, JoinChanged, JoinTimeout)):
        # Another attempt would end the same way, unless a person acts.
        return Verdict(VerdictKind.DEAD, traceback_of(raised, redact=redact), reason=reason)
    if outage.exempts(failure):
        # The pool failed, not the task, so no attempt is counted (protocol rule 25).
        return Verdict(VerdictKind.SNOOZE, delay_ms=round(backoff.delay_s(OUTAGE_BACKOFF_STEP) * 1000), reason=reason)
    return _counted(raised, delivery, skill=skill, envelope=envelope, backoff=backoff)


def _counted(
    raised: BaseException,
    delivery: Delivery,
    *,
    skill: Skill[Any, Any],
    envelope: Envelope,
    backoff: ExponentialBackoff,
) -> Verdict:
    """Return the verdict of an attempt whose failure counts: by its number, and by the policy of the skill."""
    failure, failures, redact = sole(raised), delivery.failures, skill.options.redact
    reason, trace = describe(failure, redact=redact), traceback_of(raised, redact=redact)
    policy, kinds = skill.options.retry, kinds_of(failure)
    # Another attempt would find the same child.
    hopeless = child_failed(failure) and ChildFailed not in (policy.retry_on or ())
    if hopeless or failures >= (envelope.max_attempts or skill.options.max_attempts):
        return Verdict(VerdictKind.DEAD, trace, reason=reason)
    if refusal := next(filter(None, map(policy.refuses, kinds)), ""):
        said = f"; not retried: {refusal}"
        reason = reason[: REASON_CHARS - len(said)] + said
        return Verdict(VerdictKind.DEAD, trace, reason=reason)
    delay_ms = failure.delay_ms if isinstance(failure, Retry) else None
    if delay_ms is None:
        delay_ms = max(policy.delay_ms(failures, one, backoff) for one in kinds or ((),))
    return Verdict(VerdictKind.RETRY, trace, delay_ms=delay_ms, reason=reason)


def has_asked(ended: object) -> bool:
    """Return whether a question or a join ended the attempt, also inside a task group beside other failures."""
    if isinstance(ended, BaseExceptionGroup):
        return any(has_asked(one) for one in ended.exceptions)
    return isinstance(ended, (Asked, Joining))


def kinds_of(failure: BaseException) -> tuple[Kinds, ...]:
    """Return the classes of an exception, of each one in a group; of none that the retry policy does not judge."""
    failure = sole(failure)
    if isinstance(failure, HandlerRaised):
        return failure.kinds
    if isinstance(failure, BaseExceptionGroup):
        return tuple(kinds for one in failure.exceptions for kinds in kinds_of(one))
    # The handler did not fail, or said itself what comes next.
    if isinstance(failure, (Retry, WorkerFailure, PayloadError)):
        return ()
    return (type(failure).__mro__,)


def class_names(failure: BaseException) -> tuple[tuple[str, ...], ...]:
    """Return the names of the classes of an exception, as `HandlerRaised` has them."""
    return tuple(
        tuple(kind if isinstance(kind, str) else name_of_class(kind) for kind in kinds) for kinds in kinds_of(failure)
    )


def child_failed(failure: BaseException) -> bool:
    """Return whether an attempt failed because children of its task failed, and for no other reason."""
    if isinstance(failure, BaseExceptionGroup):
        return all(child_failed(one) for one in failure.exceptions)
    return isinstance(failure, ChildFailed)


def sole(failure: BaseException) -> BaseException:
    """Unwrap exception groups that hold a single exception."""
    while isinstance(failure, BaseExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    return failure


def one_line(text: str) -> str:
    """Put a text on one line, mask secrets, and cut it to `REASON_CHARS`."""
    text = mask_known(text[:_READ_CHARS])
    return " ".join(text.encode(errors="replace").decode().split())[:REASON_CHARS]


def describe(failure: BaseException, *, redact: bool = False) -> str:
    """Describe an exception on one line, also one whose `str` raises; `redact` leaves its text out."""
    failure = sole(failure)
    if isinstance(failure, HandlerRaised):
        return failure.line
    if redact and not _is_from_worker(failure):
        return one_line(name_of(failure))
    try:
        text = str(failure)
        if isinstance(failure, BaseExceptionGroup):
            text = "; ".join([text, *(describe(one) for one in failure.exceptions)])
    except Exception:  # noqa: BLE001 - handlers may raise anything
        text = "(its str() raised)"
    name = type(failure).__name__
    return one_line(f"{name}: {text}" if text else name)


def _is_from_worker(failure: BaseException) -> bool:
    """Return whether the worker wrote the text of a failure: only what a handler raised has a traceback."""
    return isinstance(failure, WorkerFailure) or failure.__traceback__ is None


def traceback_of(failure: BaseException, *, redact: bool = False) -> bytes:
    """Format a traceback, cut to `ERROR_BYTES`; `redact` leaves out the texts of exceptions."""
    if isinstance(cause := sole(failure), HandlerRaised):
        return cause.trace
    if redact and not _is_from_worker(cause):
        return _cut(traceback_without_texts(failure))
    try:
        text = "".join(traceback.format_exception(failure))
    except Exception:  # noqa: BLE001 - handlers may raise anything
        text = f"{type(failure).__name__}: (formatting its traceback raised)"
    return _cut(text)


def _cut(text: str) -> bytes:
    if len(text) > 2 * _READ_CHARS:
        text = text[:_READ_CHARS] + text[-_READ_CHARS:]
    data = mask_known(text).encode(errors="replace")
    if len(data) <= ERROR_BYTES:
        return data
    half = ERROR_BYTES // 2
    return data[:half] + b"\n...\n" + data[-half:]
