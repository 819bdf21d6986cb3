"""Makes spans. The only module besides `environment` that imports OpenTelemetry; `active` loads it when it is needed.

Spans have names, ids, sizes and times. They have no arguments, results, questions or messages of exceptions, because
these may hold what the user does not want to export.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from opentelemetry import context as contexts
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    NoOpTracer,
    ProxyTracerProvider,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
    get_tracer_provider,
    set_span_in_context,
)

from orchestrator.core.formats import program_version
from orchestrator.core.log import add_context_source
from orchestrator.tracing import names
from orchestrator.tracing.header import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Iterator, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

T = TypeVar("T")
SpanIds: TypeAlias = SpanContext

_WITHOUT_SCRIPTS: Final = contexts.create_key("orchestrator-without-scripts")
"""Set while a lock polls, so that its polls are no spans."""
_PRODUCER: Final[Mapping[str, AttributeValue]] = {
    names.SYSTEM: names.REDIS,
    names.OPERATION_NAME: names.SUBMIT,
    names.OPERATION_TYPE: names.SEND,
}
_CONSUMER: Final[Mapping[str, AttributeValue]] = {
    names.SYSTEM: names.REDIS,
    names.OPERATION_NAME: names.RUN,
    names.OPERATION_TYPE: names.PROCESS,
    names.GEN_AI_OPERATION: names.INVOKE_AGENT,
}


class SubmitSpan:
    """The producer's span of one submit, or of all tasks of one `submit_many`.

    Attributes:
        header: the context that the tasks carry.
    """

    __slots__ = ("header", "span")

    def __init__(self, span: Span) -> None:
        self.span, self.header = span, header_of(span)

    def note_task(self, id_: str, envelope_bytes: int | None = None) -> None:
        """Note the task that was stored."""
        self.span.set_attribute(names.MESSAGE_ID, id_)
        if envelope_bytes is not None:
            self.span.set_attribute(names.ENVELOPE_SIZE, envelope_bytes)

    def refuse(self, error: str) -> None:
        """Mark the submit as failed."""
        fail(self.span, error)


class AttemptSpan:
    """The consumer's span of one attempt; it is current until `leave`."""

    __slots__ = ("_began_ns", "_left", "_producer", "_skill", "_token", "_tracing", "ended", "span")

    def __init__(self, tracing: Tracing, span: Span, skill: str, producer: SpanContext | None) -> None:
        self.span, self.ended = span, False
        self._tracing, self._skill, self._producer = tracing, skill, producer
        self._began_ns, self._left = time.time_ns(), False
        self._token = contexts.attach(set_span_in_context(span))

    @property
    def ids(self) -> SpanIds:
        """Trace id and span id, for a link from the next attempt."""
        return self.span.get_span_context()

    def end(self, outcome: str, error: str | None) -> None:
        """End the span; its first end counts."""
        if self.ended:
            return
        self.ended = True
        self.span.set_attribute(names.OUTCOME, outcome)
        if error is not None:
            fail(self.span, error)
        self.span.end()

    def leave(self) -> None:
        """Make the span that was current before the attempt current again."""
        if not self._left:
            self._left = True
            contexts.detach(self._token)

    def record_wait(self, waited_ms: int) -> None:
        """Make the span of the wait in the trace of the producer, or without one of the attempt, if that is sampled."""
        before = self._producer or self.span.get_span_context()
        if not before.trace_flags.sampled:
            return
        self._tracing.tracer.start_span(
            f"{names.WAIT} {self._skill}",
            context=_within(before),
            attributes={names.SKILL: self._skill},
            links=[Link(self.span.get_span_context(), {names.LINK: names.ATTEMPT_LINK})],
            start_time=self._began_ns - waited_ms * 1_000_000,
        ).end(self._began_ns)


class LockSpan:
    """The span of one acquisition of a lock."""

    __slots__ = ("_began_s", "_span")

    def __init__(self, span: Span) -> None:
        self._span, self._began_s = span, time.monotonic()

    def note(self, *, acquired: bool) -> None:
        """Note whether the caller has the lock."""
        self._span.set_attribute(names.LOCK_ACQUIRED, acquired)
        self._span.set_attribute(names.LOCK_WAITED, round((time.monotonic() - self._began_s) * 1000))


class Tracing:
    """Makes the spans of a process."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    # --------------------------------------------------------------------------------------------------- producers

    def start_submit(
        self, skill: object, *, pool: str, root: bool = False, extra: Mapping[str, AttributeValue] | None = None
    ) -> SubmitSpan:
        """Start the span of a submit; the caller ends it. With `root` it begins a trace of its own."""
        name = str(skill)[: names.NAME_CHARS]
        return SubmitSpan(
            self.tracer.start_span(
                f"{names.SUBMIT} {name}",
                context=contexts.Context() if root else None,
                kind=SpanKind.PRODUCER,
                attributes={**_PRODUCER, names.DESTINATION: name, names.SKILL: name, names.POOL: pool, **(extra or {})},
            )
        )

    @contextmanager
    def submit(
        self,
        skill: object,
        *,
        pool: str,
        agent: object = None,
        session: object = None,
        parent: str | None = None,
        schedule: str | None = None,
    ) -> Iterator[SubmitSpan]:
        """Trace the submit of one task."""
        extra: dict[str, AttributeValue] = {}
        if parent is not None:
            extra[names.PARENT] = parent
        if schedule is not None:
            extra[names.SCHEDULE] = schedule
        if isinstance(agent, str):
            extra[names.ADDRESSED] = agent
        if isinstance(session, str):
            extra[names.GEN_AI_CONVERSATION] = session
        submit = self.start_submit(skill, pool=pool, extra=extra)
        with self._current(submit.span):
            yield submit

    @contextmanager
    def submit_many(self, skills: Sequence[object], *, pool: str, parent: str | None) -> Iterator[SubmitSpan]:
        """Trace the submit of many tasks: one span for all of them."""
        kinds = {str(skill)[: names.NAME_CHARS] for skill in skills}
        attributes: dict[str, AttributeValue] = {**_PRODUCER, names.POOL: pool, names.BATCH_COUNT: len(skills)}
        name = names.SUBMIT
        if len(kinds) == 1:
            (one,) = kinds
            name = f"{names.SUBMIT} {one}"
            attributes[names.DESTINATION] = attributes[names.SKILL] = one
        if parent is not None:
            attributes[names.PARENT] = parent
        submit = SubmitSpan(self.tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=attributes))
        with self._current(submit.span):
            yield submit

    # ---------------------------------------------------------------------------------------------------- attempts

    def start_attempt(
        self,
        skill: str,
        header: str,
        attributes: Mapping[str, AttributeValue],
        *,
        previous: SpanIds | None,
        child: bool,
    ) -> AttemptSpan:
        """Start the span of an attempt and make it the current one.

        Args:
            skill: of the task.
            header: context of the producer, or empty.
            attributes: of the attempt.
            previous: the previous attempt, if it is known.
            child: make it a child of the producer's span in place of a root with a link to it.
        """
        producer = _remote(header)
        links = [] if producer is None or child else [Link(producer, {names.LINK: names.PRODUCER_LINK})]
        if previous is not None:
            links.append(Link(previous, {names.LINK: names.PREVIOUS_LINK}))
        span = self.tracer.start_span(
            f"{names.RUN} {skill}",
            context=contexts.Context() if producer is None or not child else _within(producer),
            kind=SpanKind.CONSUMER,
            attributes={**_CONSUMER, names.DESTINATION: skill, names.SKILL: skill, **attributes},
            links=links,
        )
        return AttemptSpan(self, span, skill, producer)

    async def ask(self, asking: Awaitable[T], *, ends: type[BaseException]) -> T:
        """Trace a question to a person; `ends` is raised when it has no answer yet."""
        span = self.tracer.start_span(names.ASK)
        with self._current(span):
            try:
                answer = await asking
            except ends:
                span.set_attribute(names.ASK_ANSWERED, value=False)
                raise
            span.set_attribute(names.ASK_ANSWERED, value=True)
            return answer

    # ------------------------------------------------------------------------------------------------ locks, scripts

    @contextmanager
    def lock(self, key: str) -> Iterator[LockSpan]:
        """Trace the acquisition of a lock."""
        span = self.tracer.start_span(names.LOCK, attributes={names.LOCK_KEY: key})
        with self._current(span, without_scripts=True):
            yield LockSpan(span)

    def traces_scripts(self) -> bool:
        """Return whether a script call now belongs to a span: the current one is recorded, and is no poll."""
        return get_current_span().is_recording() and not contexts.get_value(_WITHOUT_SCRIPTS)

    async def script(self, name: str, running: Coroutine[Any, Any, T]) -> T:
        """Trace a script call, with its repetitions."""
        span = self.tracer.start_span(
            f"{names.SCRIPT} {name}",
            kind=SpanKind.CLIENT,
            attributes={names.DB_SYSTEM: names.REDIS, names.DB_OPERATION: names.EVALSHA, names.DB_PROCEDURE: name},
        )
        try:
            return await running
        except Exception as failure:
            fail(span, type(failure).__name__)
            raise
        finally:
            span.end()

    def current_header(self) -> str:
        """Return the context of the current span, or '' without one."""
        return header_of(get_current_span())

    @contextmanager
    def _current(self, span: Span, *, without_scripts: bool = False) -> Iterator[None]:
        context = set_span_in_context(span)
        token = contexts.attach(contexts.set_value(_WITHOUT_SCRIPTS, without_scripts, context))
        try:
            yield
        except Exception as failure:
            fail(span, type(failure).__name__)
            raise
        finally:
            contexts.detach(token)
            span.end()


_found: tuple[object, Tracing | None] = (None, None)


def find_tracing() -> Tracing | None:
    """Return the spans of the tracer provider of this process; None if it makes none."""
    global _found  # noqa: PLW0603 - one provider per process
    provider = get_tracer_provider()
    if _found[0] is not provider:
        _found = provider, _tracing_of(provider)
    return _found[1]


def _tracing_of(provider: TracerProvider) -> Tracing | None:
    if isinstance(provider, ProxyTracerProvider):
        return None
    tracer = provider.get_tracer("orchestrator", program_version())
    # A disabled SDK (OTEL_SDK_DISABLED) makes a tracer that records nothing.
    if isinstance(tracer, NoOpTracer):
        return None
    add_context_source(ids_of_current_span)
    return Tracing(tracer)


@contextmanager
def under_remote(header: str) -> Iterator[None]:
    """Make a span of another process the current one during a block."""
    remote = _remote(header)
    if remote is None:
        yield
        return
    add_context_source(ids_of_current_span)
    token = contexts.attach(_within(remote))
    try:
        yield
    finally:
        contexts.detach(token)


def ids_of_current_span() -> Mapping[str, object]:
    """Return the keys that log records get."""
    found = get_current_span().get_span_context()
    return {"trace_id": f"{found.trace_id:032x}", "span_id": f"{found.span_id:016x}"} if found.is_valid else {}


def header_of(span: Span) -> str:
    """Return the context of a span as a task carries it; '' if it is invalid."""
    found = span.get_span_context()
    return (
        pack(found.trace_id, found.span_id, found.trace_flags, found.trace_state.to_header()) if found.is_valid else ""
    )


def fail(span: Span, error: str) -> None:
    """Mark a span as failed. The message of the exception stays out of it."""
    span.set_attribute(names.ERROR_TYPE, error)
    span.set_status(Status(StatusCode.ERROR))


def _remote(header: str) -> SpanContext | None:
    found = unpack(header) if header else None
    if found is None:
        return None
    state = TraceState.from_header([found.state]) if found.state else TraceState()
    return SpanContext(
        found.trace_id, found.span_id, is_remote=True, trace_flags=TraceFlags(found.flags), trace_state=state
    )


def _within(span: SpanContext) -> Context:
    return set_span_in_context(NonRecordingSpan(span), contexts.Context())
