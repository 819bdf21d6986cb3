"""Runs one attempt as a row of small steps, from a delivery to a verdict in the completer.

envelope -> skill -> arguments -> handler under a cancel scope -> verdict. A step that cannot go on answers the verdict.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from random import randint
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import msgspec

from orchestrator.core.backoff import Backoff
from orchestrator.core.errors import Fenced, InvalidInput, StoreError
from orchestrator.core.log import get_logger
from orchestrator.locks.execution import ExecutionLockBusy, ExecutionLockDeadlock
from orchestrator.tasks import scripts
from orchestrator.tasks.model import Delivery, Envelope, LeaseStatus, Verdict, VerdictKind, decode_envelope
from orchestrator.tasks.queries import envelope_bytes
from workers.context import TaskContext
from workers.runtime.active_commands import stopped_by
from workers.runtime.attempt_record import AttemptRecord
from workers.runtime.calling import HandlerCaller, Serialised
from workers.runtime.in_flight import Held
from workers.runtime.outage import OutagePolicy, OutageRetries
from workers.runtime.sharing import Shared, attempt_workspace
from workers.runtime.slots import Slots, slot_ends
from workers.runtime.time_limits import TimeLimits
from workers.runtime.verdicts import failed, has_asked, one_line, rejected, sole
from workers.skill import HandlerKind, Skill

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from orchestrator.client.client import Orchestrator
    from orchestrator.locks.attempt import AttemptLocks
    from orchestrator.services import Services
    from orchestrator.workspace.workspace import Workspace
    from workers.agent import Agent
    from workers.context import TaskRecordAccess
    from workers.runtime.active_commands import WorkerCommands
    from workers.runtime.completer import Completer
    from workers.runtime.crash_isolation import CrashIsolation
    from workers.runtime.emitter import Emitter
    from workers.runtime.in_flight import InFlight
    from workers.runtime.locking import Locking

_RELEASED = Verdict(VerdictKind.RELEASED, reason="drained before it started")
_REQUEUE = Verdict(VerdictKind.REQUEUE, reason="given back by a worker that stops")
_CANCELLED = Verdict(VerdictKind.CANCELLED, reason="cancelled while it ran")
LOCKED_AGAIN_MS: Final = (1000, 3000)
"""An attempt whose session or agent is locked by another task tries again after a time between these."""
BLOCKED_PAUSE_S: Final = 0.05
"""What was handed out although it is stopped goes back after this pause."""
_log = get_logger(__name__)


class Attempt(msgspec.Struct, frozen=True):
    """An attempt that is ready to run: what is called, with what, for how long at most."""

    held: Held
    envelope: Envelope
    skill: Skill[Any, Any]
    context: TaskContext
    values: dict[str, Any]
    timeout_s: float | None
    began_s: float


class Returned(msgspec.Struct, frozen=True):
    """A handler came to its end."""

    value: Any


class Executor:
    """Runs the attempts of one agent in this process."""

    def __init__(
        self,
        agent: Agent,
        *,
        services: Services,
        in_flight: InFlight,
        completer: Completer,
        worker: str,
        client: Callable[[], Awaitable[Orchestrator]],
        last_outage_s: Callable[[], float],
        crash_isolation: CrashIsolation,
        locking: Locking,
        record_duration: Callable[[float], None],
        emitter: Emitter,
        commands: WorkerCommands,
    ) -> None:
        self.slots = Slots(agent.concurrency, attempt=self._run)
        self.state: Any = None
        """What the agent's `lifespan` yielded."""
        self.caller = HandlerCaller(agent, settings=services.settings)
        self._agent, self._services, self._in_flight, self._completer = agent, services, in_flight, completer
        self._worker, self._client = worker, client
        self._crash_isolation, self._record_duration = crash_isolation, record_duration
        self._locking = locking
        self._last_outage_s, self._outage_retries = last_outage_s, OutageRetries()
        self.emitter = emitter
        self._commands = commands
        retry = services.settings.retry
        self._backoff = Backoff(base_s=retry.base_s, cap_s=retry.cap_s)
        self._max_bytes = services.settings.results.max_bytes

    def _run(self, held: Held) -> Coroutine[Any, Any, None]:
        return self._attempt(held) if held.delivery.deaths == 0 else self._attempt_isolated(held)

    async def _attempt_isolated(self, held: Held) -> None:
        async with self._crash_isolation.hold(await self._depth(held.delivery)) as admit_next:
            held.admit_next = admit_next
            if held.told_to_stop() or await self._announce(held):
                await self._attempt(held)

    async def _announce(self, held: Held) -> bool:
        """Say that a task with a death behind it begins now: if this worker dies, those that wait have not died."""
        delivery = held.delivery
        call = scripts.begin(self._services.keys, rows=[(delivery.task_id, delivery.generation)])
        try:
            (status,) = await self._services.store.call(
                call, retry_for_s=self._services.settings.redis.command_timeout_s
            )
        except StoreError as failure:
            self._completer.put(
                delivery, Verdict(VerdictKind.RELEASED, reason=f"its start could not be told: {failure}")
            )
            return False
        if status is LeaseStatus.LOST:
            self._in_flight.drop(delivery)
            return False
        return True

    async def _depth(self, delivery: Delivery) -> int:
        try:
            envelope = await self._envelope(delivery)
        except (StoreError, msgspec.DecodeError):
            return 0  # the attempt will say what that means
        return 0 if envelope is None else envelope.depth

    async def _attempt(self, held: Held) -> None:
        ready = self._prepare(held, held.delivery.envelope) if held.delivery.envelope else await self._fetch(held)
        if isinstance(ready, Attempt) and needs_lock(ready):
            ready = await self._lock(ready)
            if isinstance(ready, Attempt) and (blocked := self._blocked(held, ready.envelope)):
                await ready.context.opened_locks().execution.drop()
                ready = blocked
        if isinstance(ready, Attempt):
            started_s = time.monotonic()
            try:
                verdict = await self._perform(ready)
            finally:
                held.forget_handler()
                if (locks := ready.context.locks_in_use) is not None:
                    await locks.execution.drop()
            self._record_duration(time.monotonic() - started_s)
            if verdict is not None:
                self._completer.put(held.delivery, verdict)
        elif ready is None or held.why == "lost":
            self._in_flight.drop(held.delivery)
        elif held.blocked:
            self._commands.refresh()
            # It may be handed out again at once: not in a hot loop.
            await anyio.sleep(BLOCKED_PAUSE_S)
            self._completer.put(held.delivery, ready)
        else:
            self._completer.put(held.delivery, ready)

    async def _lock(self, attempt: Attempt) -> Attempt | Verdict | None:
        """Get what must be locked before the handler starts; None: the attempt is not ours any more."""
        held, locks = attempt.held, attempt.context.opened_locks().execution
        ended: Verdict | None
        try:
            await locks.take_before_start(again=has_begun_before(held.delivery))
        except ExecutionLockBusy as occupied:
            ended = Verdict(VerdictKind.SNOOZE, delay_ms=randint(*LOCKED_AGAIN_MS), reason=str(occupied))
        except ExecutionLockDeadlock as deadlock:
            ended = rejected(str(deadlock))
        except Fenced:
            ended = None
        except StoreError as failure:
            ended = Verdict(VerdictKind.RELEASED, reason=f"its execution lock could not be taken: {failure}")
        except BaseException:
            await locks.drop()
            raise
        else:
            if not held.told_to_stop():
                return attempt
            ended = None if held.why == "lost" else _RELEASED
        await locks.drop()
        return ended

    async def _fetch(self, held: Held) -> Attempt | Verdict | None:
        """As `_prepare`, for an envelope too large to travel; None: the task is gone, nothing is to run or to store."""
        if held.told_to_stop():
            return _RELEASED
        try:
            data = await envelope_bytes(self._services.store, held.delivery.task_id)
        except StoreError as failure:
            return Verdict(VerdictKind.REQUEUE, reason=f"its record could not be read: {failure}")
        return None if data is None else self._prepare(held, data)

    def _prepare(self, held: Held, packed: bytes) -> Attempt | Verdict:
        """Find out what is to be run."""
        if held.told_to_stop():
            return _RELEASED
        try:
            envelope = decode_envelope(packed)
        except msgspec.DecodeError as unreadable:
            return rejected(f"its envelope cannot be read: {unreadable}")
        held.envelope = envelope
        if (blocked := self._blocked(held, envelope)) is not None:
            return blocked
        skill = self._agent.skills.get(envelope.skill)
        if skill is None:
            return Verdict(VerdictKind.RELEASED, reason=f"no-skill {envelope.skill}")
        timeout_s = envelope.timeout_s if envelope.timeout_s is not None else skill.options.timeout_s
        context = held.context = self._context(held, envelope, timeout_s)
        try:
            # A handler's process checks its arguments itself.
            values = {} if skill.kind is HandlerKind.PROCESS else skill.bind(envelope.args, context)
            return Attempt(held, envelope, skill, context, values, timeout_s, time.monotonic())
        except InvalidInput as invalid:
            return rejected(str(invalid))

    def _blocked(self, held: Held, envelope: Envelope) -> Verdict | None:
        """What a stop makes of an attempt that has not begun: it was handed to us before we, or Redis, knew of it."""
        if not self._commands.desired.active:
            return None
        stop = self._commands.stop_of(held.delivery.agent, skill=envelope.skill, session=envelope.session)
        held.blocked = stop is not None
        return None if stop is None else Verdict(VerdictKind.RELEASED, reason=one_line(stopped_by(stop)))

    async def _envelope(self, delivery: Delivery) -> Envelope | None:
        if delivery.envelope:
            return decode_envelope(delivery.envelope)
        data = await envelope_bytes(self._services.store, delivery.task_id)
        return None if data is None else decode_envelope(data)

    def _context(self, held: Held, envelope: Envelope, timeout_s: float | None) -> TaskContext:
        delivery = held.delivery
        deadline = None if timeout_s is None else datetime.now(UTC) + timedelta(seconds=timeout_s)
        return TaskContext(
            delivery,
            envelope,
            worker=self._worker,
            deadline=deadline,
            client=self._client,
            state=self.state,
            output=partial(self.emitter.attempt, delivery),
            record=partial(self._record, delivery),
            locks=partial(self._locks, held, envelope),
            workspace=self._workspace,
            around=self._shared,
        )

    def _record(self, delivery: Delivery) -> TaskRecordAccess:
        """What an attempt reads from the record of its task, and keeps there."""
        return AttemptRecord(self._services, delivery)

    def _workspace(self, context: TaskContext) -> Workspace:
        """The workspace of an attempt's session."""
        return attempt_workspace(context, self._services)

    def _shared(self, context: TaskContext) -> Shared:
        """What an attempt shares beyond its session."""
        return Shared(context, self._services, self._commands)

    def _locks(self, held: Held, envelope: Envelope) -> AttemptLocks:
        """The locks of an attempt."""
        mode = self._agent.skills[envelope.skill].options.lock
        return self._locking.of(held, envelope, mode=mode, lease_ms=self._agent.lease_ms)

    async def _perform(self, attempt: Attempt) -> Verdict | None:
        """Run the handler; None: the attempt ended without a verdict of its own (taken away, or left behind)."""
        held = attempt.held
        held.running = True
        held.unstopped = partial(self._leave_behind, attempt)
        limits = self._watch(attempt)
        try:
            ended = await self._call(attempt)
        finally:
            held.running = False
            if limits is not None:
                limits.close()
        if held.abandoned:
            self._in_flight.abandoned_handlers -= 1
            return None
        if (question := self._question(attempt, ended)) is not None:
            return question
        if attempt.context.saw_cancelled and await self._was_told_to_stop(attempt):
            return self._stopped(attempt, None)
        if isinstance(ended, Returned):
            return self._succeeded(attempt, ended.value)
        if ended is not None and not held.stopping:
            return self._failed(attempt, ended)
        return self._stopped(attempt, ended)

    async def _was_told_to_stop(self, attempt: Attempt) -> bool:
        """Whether a handler that saw `ctx.cancelled` came to its end for that; the loop may not know of it yet."""
        held, envelope = attempt.held, attempt.envelope
        if not held.told_to_stop():
            await asyncio.sleep(0)
        if not held.told_to_stop():
            stop = self._commands.desired.interrupts(
                agent=held.delivery.agent, skill=envelope.skill, session=envelope.session
            )
            if stop is not None:
                held.because = stopped_by(stop)
                held.stop("stopped")
        return held.why in {"cancelled", "stopped"}

    @staticmethod
    def _watch(attempt: Attempt) -> TimeLimits | None:
        """Start the limits of an attempt; most have none, and pay for none."""
        held, silence_s = attempt.held, attempt.skill.options.silence_s
        if attempt.timeout_s is None and silence_s is None:
            return None

        def over(why: Literal["late", "silent"], allowed_s: float) -> None:
            held.allowed_s = allowed_s
            held.stop(why)

        limits = TimeLimits(timeout_s=attempt.timeout_s, silence_s=silence_s, over=over)
        attempt.context.watched_by(limits)
        return limits

    async def _call(self, attempt: Attempt) -> Returned | BaseException | None:
        """Call the handler; None: it was cancelled from here and has stopped."""
        held = attempt.held
        try:
            return Returned(
                await self.caller.call(
                    attempt.skill, attempt.values, args=attempt.envelope.args, context=attempt.context, held=held
                )
            )
        except BaseException as raised:
            # A handler may raise what it likes, also SystemExit or a cancellation that nobody asked for.
            if not isinstance(raised, asyncio.CancelledError):
                return raised
            if held.stopping:
                return None
            if slot_ends():
                raise
            return raised

    def _succeeded(self, attempt: Attempt, value: Any) -> Verdict:
        if isinstance(value, Serialised):
            return Verdict(VerdictKind.SUCCEEDED, value.json)
        try:
            return Verdict(VerdictKind.SUCCEEDED, attempt.skill.dump_result(value, max_bytes=self._max_bytes))
        except InvalidInput as invalid:
            return rejected(str(invalid))

    def _failed(self, attempt: Attempt, failure: BaseException) -> Verdict | None:
        delivery = attempt.held.delivery
        cause = sole(failure)
        if isinstance(cause, Fenced) and cause.task_id == delivery.task_id:
            # The task is somebody else's by now: there is nothing to store.
            _log.warning("attempt_fenced", task=delivery.task_id, agent=delivery.agent, attempt=delivery.attempt)
            locks = attempt.context.locks_in_use
            if locks is not None and locks.execution.lost and held_by_us(attempt.held):
                return _lock_lost(cause.owner)
            self._in_flight.drop(delivery)
            return None
        return failed(
            failure,
            delivery,
            skill=attempt.skill,
            envelope=attempt.envelope,
            backoff=self._backoff,
            outage=OutagePolicy(delivery.task_id, self._last_outage_s() >= attempt.began_s, self._outage_retries),
        )

    def _stopped(self, attempt: Attempt, raised: BaseException | None) -> Verdict | None:
        """The verdict of an attempt that was cancelled from here; what it `raised` counts if only its time was over."""
        match attempt.held.why:
            case "drain":
                return _REQUEUE
            case "stopped":
                return Verdict(VerdictKind.REQUEUE, reason=one_line(attempt.held.because))
            case "cancelled":
                return _CANCELLED
            case "fenced":
                return _lock_lost(attempt.held.lock_owner)
            case "lost":
                self._in_flight.drop(attempt.held.delivery)
                return None
        return self._failed(attempt, raised or TimeoutError(_overrun(attempt.held)))

    @staticmethod
    def _question(attempt: Attempt, ended: Returned | BaseException | None) -> Verdict | None:
        """The verdict of an attempt that has asked a person, however its handler ended after that; None: of another."""
        held, pending = attempt.held, attempt.context.pending
        if pending is None or held.why in {"cancelled", "lost"}:
            return None
        if ended is not None and not has_asked(ended):
            _log.warning(
                "handler_went_on_after_asking",
                task=held.delivery.task_id,
                agent=held.delivery.agent,
            )
        return Verdict(
            VerdictKind.ASK,
            pending.packed,
            delay_ms=pending.delay_ms,
            at_ms=pending.at_ms,
            number=pending.number,
        )

    def _leave_behind(self, attempt: Attempt) -> None:
        """End an attempt without its handler, which ignores its cancellation; a fresh slot takes its place."""
        held = attempt.held
        if not held.running or held.abandoned:
            return
        held.abandoned = True
        self._in_flight.abandoned_handlers += 1
        _log.error(
            "handler_ignores_cancellation",
            task=held.delivery.task_id,
            agent=held.delivery.agent,
            attempt=held.delivery.attempt,
        )
        verdict = self._question(attempt, None)
        if verdict is None:
            verdict = self._stopped(attempt, TimeoutError(f"{_overrun(held)}, and its handler did not stop"))
        if verdict is not None:
            self._completer.put(held.delivery, verdict)
        if (locks := attempt.context.locks_in_use) is not None:
            locks.execution.revoke()
        self.slots.give_up()
        for let_go in (held.leave, held.admit_next):
            if let_go is not None:
                let_go()


def has_begun_before(delivery: Delivery) -> bool:
    """Whether an earlier attempt may be running still, somewhere: it is shut out before this one begins."""
    return delivery.attempt > 1 or delivery.deaths > 0


def needs_lock(attempt: Attempt) -> bool:
    """Whether something must be locked before the handler starts. Most attempts share nothing, and lock nothing."""
    if attempt.skill.options.lock == "agent":
        return True
    if attempt.envelope.session is None:
        return False
    return attempt.skill.options.lock == "session" or has_begun_before(attempt.held.delivery)


def held_by_us(held: Held) -> bool:
    """Whether the task is ours as far as is known."""
    return held.why != "lost"


def _lock_lost(owner: str) -> Verdict:
    return Verdict(VerdictKind.REQUEUE, reason=f"its execution lock was lost; {owner or 'nobody'} has it now")


def _overrun(held: Held) -> str:
    if held.why == "silent":
        return f"the attempt gave no sign of life for {held.allowed_s:g} s"
    return f"the attempt took longer than its timeout of {held.allowed_s:g} s"
