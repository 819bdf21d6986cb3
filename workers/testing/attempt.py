"""Runs one attempt of a skill without a team, the way a worker does, and returns its outcome."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import anyio

from orchestrator.core.durations import Duration, from_instant_ms
from orchestrator.core.errors import InvalidInput, OrchestratorError
from orchestrator.core.ids import TaskIds
from orchestrator.core.payload import decode_json
from orchestrator.tasks.model import Delivery, Envelope, Progress, Question, Verdict, VerdictKind, decode_envelope
from orchestrator.tasks.questions import unpack_question
from orchestrator.tasks.submission import Submission, SubmissionValidator
from orchestrator.testing.event_loop import check_event_loop
from orchestrator.testing.offline import packed_envelope
from orchestrator.workers.agent import Agent
from orchestrator.workers.context import TaskContext
from orchestrator.workers.runtime.calling import HandlerCaller
from orchestrator.workers.runtime.completer import Completer
from orchestrator.workers.runtime.executor import Executor, Next
from orchestrator.workers.runtime.in_flight import InFlight
from orchestrator.workers.runtime.resources import Resources
from orchestrator.workers.runtime.task_log import TaskLog
from orchestrator.workers.runtime.throughput import Throughput
from orchestrator.workers.runtime.timings import AttemptTimings
from orchestrator.workers.skill import Skill
from orchestrator.workers.testing.recording import WORKER, FreeProviders, NoPausing, Recording

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.client.client import Orchestrator
    from orchestrator.services import Services
    from orchestrator.tasks.submission import Arguments, TypedSkill
    from orchestrator.workers.runtime.attempt import Attempt
    from orchestrator.workers.runtime.parts import WorkerParts
    from orchestrator.workers.testing.children import Children
    from orchestrator.workers.testing.scripted_record import ScriptedAnswers, ScriptedRecord

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

ENTRY: Final = "1-1"
GENERATION: Final = "1"


class Lifespan:
    """Default of `state`: enter the agent's own lifespan."""


LIFESPAN: Final = Lifespan()


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T_co]):
    """Outcome of one attempt, and a record of its actions.

    Attributes:
        verdict: succeeded, retry, snooze, dead, ask, join, or released (its agent lacks the skill).
        reason: explanation in one line.
        delay: time until the next attempt (retry, snooze).
        until: time of a `Snooze(until=...)`.
        error: exception of the handler.
        progress: calls of `ctx.progress`, in order.
        output: chunks of `ctx.emit`, as readers get them.
        submitted: child tasks with plain names and arguments, and with the keys that the handler set.
        json: the result as Redis would store it.
        asked: the question that the attempt ends with, if it asks one.
        once: results of `ctx.once`, of this attempt and those passed to `run_skill`.
        effects: effects of `ctx.effect` as they are stored; pass them to the `run_skill` of the next attempt.
    """

    verdict: VerdictKind
    reason: str
    delay: timedelta | None
    until: datetime | None
    error: BaseException | None
    progress: tuple[Progress, ...]
    output: tuple[Any, ...]
    submitted: tuple[Submission, ...]
    json: bytes
    asked: Question | None
    once: Mapping[str, Any]
    effects: Mapping[str, bytes]
    _skill: TypedSkill[T_co] = field(repr=False, compare=False)

    @property
    def value(self) -> T_co:
        """The result, read back from its JSON as what the handler returns.

        Raises:
            AssertionError: there is no result. The message has the verdict, the cause is the handler's exception.
        """
        if self.verdict is not VerdictKind.SUCCEEDED:
            later = "" if self.delay is None else f" (again in {self.delay.total_seconds():g} s)"
            raise AssertionError(
                f"the attempt has no result, its verdict is {self.verdict}{later}: {self.reason}"
            ) from self.error
        return self._skill.read_result(self.json)


async def run_skill(
    skill: TypedSkill[T],
    args: Arguments = None,
    *,
    attempt: int = 1,
    deaths: int = 0,
    session: str | None = None,
    key: str | None = None,
    tags: Sequence[str] = (),
    timeout: Duration | None = None,
    max_attempts: int | None = None,
    state: Any = LIFESPAN,
    children: Children | None = None,
    answers: ScriptedAnswers = (),
    once: Mapping[str, Any] | None = None,
    effects: Mapping[str, bytes] | None = None,
    orc: Orchestrator | None = None,
) -> Outcome[T]:
    """Run one attempt of a skill without a team, the way a worker does.

    It passes the arguments through JSON and the handler's signature, calls the agent's middleware, applies time limits,
    serialises the result, and judges exceptions by the rules of workers, with the default settings. Locks and shared
    state are real: their first use starts a Redis for the tests of this thread, and each call has its own namespace.

    Args:
        skill: the skill itself.
        args: its arguments.
        attempt: number of the attempt; the task becomes a dead letter if its last one fails.
        deaths: number of earlier attempts that ended with their worker.
        session: session of the task.
        key: its idempotency key.
        tags: labels of the task.
        timeout: seconds or timedelta that the attempt may take; the skill's by default.
        max_attempts: limit of attempts of the task; the skill's by default.
        state: value of `ctx.state`; by default the value that the agent's lifespan yields.
        children: results of child tasks. By skill: a list (one for each child, in order), one result for every child,
            or a function of the `Submission`. Or one such function for all. An exception in place of a result sets how
            the child ends: `TaskFailed`, `TaskCancelled`, `TaskExpired`, `TimeoutError`; any other is a failure. A
            join of a child without a result ends the attempt; a `TimeoutError` lets the deadline of a join pass.
        answers: answers to `ctx.ask`: a list in the order of the questions, a mapping by their text, or a function of
            the text. A `TimeoutError` in place of an answer means that the deadline passed. The attempt ends with the
            first question without an answer.
        once: results that earlier attempts have stored with `ctx.once`, by name.
        effects: `Outcome.effects` of an earlier attempt. If the outcome of one is unknown and `unknown="ask"`, the
            attempt ends with the question.
        orc: open client, such as `team.orc`, whose namespace and settings the attempt uses, so that a test can prepare
            shared state and read it afterwards.

    Raises:
        InvalidInput: `submit` would refuse the arguments or an option.
        AssertionError: the handler awaits a child without a scripted result.
        ConfigError: the handler uses locks or shared state, and no redis-server is installed.
    """
    __tracebackhide__ = True
    check_event_loop()
    agent = _agent_of(skill)
    recording = Recording(children, orc=orc, answers=answers, once=once, effects=effects)
    # By its name, because with the skill itself the client would refuse invalid arguments before the worker does.
    row = SubmissionValidator(recording.services.settings, ids=TaskIds(listens=False)).row(
        Submission(skill.name, args, session=session, key=key, timeout=timeout, max_attempts=max_attempts, tags=tags)
    )
    delivery = Delivery(agent.name, ENTRY, row.id, GENERATION, attempt, deaths, packed_envelope(row))
    async with AsyncExitStack() as entered:
        if isinstance(state, Lifespan):
            state = None if agent.lifespan is None else await entered.enter_async_context(agent.lifespan(agent))
        verdict, error = await _attempt(agent, delivery, recording, state)
    if recording.misuse is not None:
        raise recording.misuse
    return _outcome(skill, verdict, error, recording)


async def _attempt(
    agent: Agent, delivery: Delivery, recording: Recording, state: object
) -> tuple[Verdict, BaseException | None]:
    services = recording.services
    in_flight = InFlight(grace_s=lambda: services.settings.worker.grace_s)
    verdicts = _Verdicts(services, in_flight)
    parts = recording.parts(in_flight, verdicts)
    executor = _OfflineExecutor(agent, parts, recording.record)
    executor.state = state
    watched = executor.caller = _WatchedCaller(agent, settings=services.live, starter=parts.starter)
    running = in_flight.add(delivery)
    assert running is not None

    verdict: Verdict | None = None

    async def until_dropped() -> None:
        await in_flight.wait_empty()
        group.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(executor.slots.run)
            executor.slots.start(running)
            group.start_soon(until_dropped)
            verdict = await verdicts.given
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await watched.close()
            if recording.throw_away is not None:
                await recording.throw_away.close()
    if verdict is None:
        raise OrchestratorError("the handler raised Fenced, so its attempt has no verdict") from watched.raised
    return verdict, watched.raised


def _outcome(skill: TypedSkill[T], verdict: Verdict, error: BaseException | None, recording: Recording) -> Outcome[T]:
    delay, until = None, None
    if verdict.kind in {VerdictKind.ASK, VerdictKind.JOIN}:
        pass  # Questions and joins have deadlines of their own.
    elif verdict.at_ms:
        until = from_instant_ms(verdict.at_ms)
        delay = max(timedelta(), until - datetime.now(UTC))
    elif verdict.kind in {VerdictKind.RETRY, VerdictKind.SNOOZE}:
        delay = timedelta(milliseconds=verdict.delay_ms)
    asked = _asked(verdict) if verdict.kind is VerdictKind.ASK else None
    return Outcome(
        # No other version of the skill is known here.
        verdict=VerdictKind.DEAD if verdict.kind is VerdictKind.INVALID else verdict.kind,
        reason=_reason(verdict, asked),
        delay=delay,
        until=until,
        error=error,
        progress=tuple(recording.progress),
        output=tuple(recording.output),
        submitted=tuple(recording.submitted),
        json=verdict.payload if verdict.kind is VerdictKind.SUCCEEDED else b"",
        asked=asked,
        once=recording.record.once,
        effects=dict(recording.record.effects),
        _skill=skill,
    )


def _reason(verdict: Verdict, asked: Question | None) -> str:
    if verdict.kind is VerdictKind.JOIN:
        return "it joins tasks that have not ended"
    return verdict.reason if asked is None else f"it asks {asked.question!r}"


def _asked(verdict: Verdict) -> Question:
    wording, now = unpack_question(verdict.payload), datetime.now(UTC)
    until = None
    if verdict.at_ms:
        until = from_instant_ms(verdict.at_ms)
    elif verdict.delay_ms:
        until = now + timedelta(milliseconds=verdict.delay_ms)
    return Question(
        number=verdict.number,
        question=wording.question,
        asked_at=now,
        options=tuple(decode_json(option.encode()) for option in wording.options),
        until=until,
        default=decode_json(wording.default.encode()) if wording.default else None,
        effect=wording.effect,
    )


def _agent_of(skill: object) -> Agent:
    owner = getattr(skill, "owner", None)
    if not isinstance(skill, Skill) or not isinstance(owner, Agent):
        raise InvalidInput(f"run_skill takes a skill, a handler decorated with @agent.skill, not {skill!r}")
    return owner


class _Verdicts(Completer):
    """Passes the verdict to `_attempt`."""

    def __init__(self, services: Services, in_flight: InFlight) -> None:
        super().__init__(services, in_flight, AttemptTimings(), TaskLog(), worker=WORKER)
        self.given: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    def put(self, delivery: Delivery, verdict: Verdict) -> None:  # noqa: ARG002 - there is only one
        if not self.given.done():
            self.given.set_result(verdict)


class _OfflineExecutor(Executor):
    """Runs an attempt without a task in Redis, so there is no start to record, and no earlier attempt to lock out."""

    def __init__(self, agent: Agent, parts: WorkerParts, record: ScriptedRecord) -> None:
        super().__init__(agent, parts, Throughput(limited=True, changed=lambda: None))
        self._scripted = record

    def _open_resources(self, attempt: Attempt) -> Resources:
        resources = super()._open_resources(attempt)
        resources.record = self._scripted
        resources.pausing = NoPausing()
        resources.providers = FreeProviders(attempt.delivery.task_id, attempt.delivery.generation)
        return resources

    async def _announce(self, attempt: Attempt) -> Next:  # noqa: ARG002 - there is no record
        return Next.RUN

    async def _lock(self, attempt: Attempt) -> Next | Verdict:
        return Next.RUN if attempt.skill.options.lock == "task" else await super()._lock(attempt)


class _WatchedCaller(HandlerCaller):
    """Keeps the exception of the handler or its middleware, because a verdict has only its text."""

    raised: BaseException | None = None

    async def call(self, attempt: Attempt) -> Any:
        try:
            return await super().call(attempt)
        except asyncio.CancelledError:
            raise
        except BaseException as raised:
            self.raised = raised
            raise


class RecordedContext(TaskContext):
    """Context without a team, for functions that take one. `make_context` makes it."""

    def __init__(self, delivery: Delivery, envelope: Envelope, *, state: object, recording: Recording) -> None:
        services = recording.services
        in_flight = InFlight(grace_s=lambda: services.settings.worker.grace_s)
        attempt = in_flight.add(delivery)
        assert attempt is not None
        attempt.envelope = envelope
        parts = recording.parts(in_flight, Completer(services, in_flight, AttemptTimings(), TaskLog(), worker=WORKER))
        resources = Resources(attempt, parts, lock_mode="task", lease_ms=15_000)
        resources.record = recording.record
        resources.pausing = NoPausing()
        resources.providers = FreeProviders(delivery.task_id, delivery.generation)
        super().__init__(delivery, envelope, resources, worker=parts.worker, state=state)
        self._recording = recording

    @property
    def reported(self) -> tuple[Progress, ...]:
        """Calls of `progress` so far."""
        return tuple(self._recording.progress)

    @property
    def emitted(self) -> tuple[Any, ...]:
        """Chunks of `emit` so far, as readers get them."""
        return tuple(self._recording.output)

    @property
    def submitted(self) -> tuple[Submission, ...]:
        """Child tasks so far, as in `Outcome.submitted`."""
        return tuple(self._recording.submitted)


def make_context(
    *,
    agent: str = "agent",
    attempt: int = 1,
    session: str | None = None,
    key: str | None = None,
    tags: Sequence[str] = (),
    state: object = None,
    children: Children | None = None,
    answers: ScriptedAnswers = (),
    once: Mapping[str, Any] | None = None,
    effects: Mapping[str, bytes] | None = None,
    orc: Orchestrator | None = None,
) -> RecordedContext:
    """Make a context without a team, for a function that takes one or a direct call of a handler.

    Its locks and its shared state are real; see `run_skill`.

    Args:
        agent: name of the agent.
        attempt: number of the attempt.
        session: session of the task.
        key: its idempotency key.
        tags: labels of the task.
        state: value of `ctx.state`.
        children: results of child tasks; see `run_skill`.
        answers: answers to `ctx.ask`; see `run_skill`. A question without an answer raises `Asked`.
        once: stored results of `ctx.once`; see `run_skill`.
        effects: stored effects; see `run_skill`.
        orc: open client whose namespace has the shared state; see `run_skill`.

    Raises:
        InvalidInput: `submit` would refuse an option.
    """
    recording = Recording(children, orc=orc, answers=answers, once=once, effects=effects)
    row = SubmissionValidator(recording.services.settings, ids=TaskIds(listens=False)).row(
        Submission("skill", session=session, key=key, tags=tags)
    )
    envelope = packed_envelope(row)
    delivery = Delivery(agent, ENTRY, row.id, GENERATION, attempt, 0, envelope)
    return RecordedContext(delivery, decode_envelope(envelope), state=state, recording=recording)
