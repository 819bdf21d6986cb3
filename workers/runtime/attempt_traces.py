"""Traces the attempts of a worker: a span from the start of an attempt until its verdict, and one for the wait before.

Nothing here runs in a process that does not trace.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from orchestrator.tasks.model import VerdictKind
from orchestrator.tracing import names
from orchestrator.workers.runtime.verdicts import HandlerRaised, sole
from orchestrator.workers.signals import Retry

if TYPE_CHECKING:
    from typing import Literal

    from orchestrator.tasks.model import Delivery, Envelope, Verdict
    from orchestrator.tracing.spans import AttemptSpan, SpanIds, Tracing

REMEMBERED: Final = 1000
"""Tasks whose last attempt this worker knows, so that the next one can link to it."""
_FAILED: Final = frozenset({VerdictKind.RETRY, VerdictKind.DEAD, VerdictKind.INVALID})
_ENDS: Final = frozenset({VerdictKind.SUCCEEDED, VerdictKind.DEAD, VerdictKind.CANCELLED})


class AttemptTraces:
    """Makes the spans of the attempts of one worker.

    Args:
        pool: name of the pool.
        worker: id of the worker.
        relation: how an attempt refers to the submit of its task.
    """

    def __init__(self, *, pool: str, worker: str, relation: Literal["link", "parent"]) -> None:
        self._pool, self._worker, self._is_child = pool, worker, relation == "parent"
        self._last: OrderedDict[str, SpanIds] = OrderedDict()

    def begin(self, tracing: Tracing, delivery: Delivery, envelope: Envelope) -> AttemptTrace:
        """Start the span of an attempt and make it the current one."""
        attributes: dict[str, str | int] = {
            names.MESSAGE_ID: delivery.task_id,
            names.BODY_SIZE: len(envelope.args),
            names.CONSUMER_GROUP: delivery.agent,
            names.CLIENT_ID: self._worker,
            names.GEN_AI_AGENT: delivery.agent,
            names.POOL: self._pool,
            names.ATTEMPT: delivery.attempt,
        }
        if delivery.deaths:
            attributes[names.DEATHS] = delivery.deaths
        if envelope.session is not None:
            attributes[names.GEN_AI_CONVERSATION] = envelope.session
        if envelope.parent is not None:
            attributes[names.PARENT] = envelope.parent
        previous = self._last.pop(delivery.task_id, None)
        span = tracing.start_attempt(
            envelope.skill, envelope.trace, attributes, previous=previous, child=self._is_child
        )
        return AttemptTrace(self, span, delivery.task_id)

    def remember(self, task_id: str, span: SpanIds) -> None:
        """Keep the last attempt of a task that has not ended."""
        self._last[task_id] = span
        if len(self._last) > REMEMBERED:
            self._last.popitem(last=False)


class AttemptTrace:
    """The trace of one attempt."""

    __slots__ = ("_error", "_span", "_task_id", "_traces")

    def __init__(self, traces: AttemptTraces, span: AttemptSpan, task_id: str) -> None:
        self._traces, self._span, self._task_id = traces, span, task_id
        self._error: str | None = None

    def note_raised(self, raised: object) -> None:
        """Note what the handler raised: its type only, because the text may hold arguments."""
        if isinstance(raised, BaseException):
            cause = sole(raised)
            self._error = cause.line.partition(":")[0] if isinstance(cause, HandlerRaised) else type(cause).__name__

    def end(self, verdict: Verdict, *, stopped_by: str | None) -> None:
        """End the span with the verdict of the attempt.

        Args:
            verdict: of the attempt.
            stopped_by: why the worker stopped the attempt, if it did.
        """
        kind = verdict.kind
        if kind not in _ENDS:
            self._traces.remember(self._task_id, self._span.ids)
        error: str | None = None
        if kind in _FAILED and not (kind is VerdictKind.RETRY and self._error == Retry.__name__):
            error = stopped_by or self._error or kind.value
        self._span.end(kind.value, error)

    def end_lost(self) -> None:
        """End the span of an attempt without a verdict, because another worker has its task."""
        self._span.end(names.LOST, names.LOST)

    def leave(self) -> None:
        """Make the span that was current before the attempt current again, in the task that began it."""
        self._span.leave()

    def record_wait(self, waited_ms: int) -> None:
        """Make the span of the time between ready and begin."""
        self._span.record_wait(waited_ms)
