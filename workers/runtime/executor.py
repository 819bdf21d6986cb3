"""Runs the attempts of an agent: envelope, skill, arguments, locks, handler, verdict.

A step that fails returns the verdict; the completer stores it.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec
from anyio import to_thread
from msgspec.structs import replace

from orchestrator.core.backoff import ExponentialBackoff, Pauses
from orchestrator.core.errors import (
    DamagedData,
    Fenced,
    InvalidInput,
    LeaseLapsed,
    PayloadError,
    StoreError,
    UpgradeUnfinished,
    WaitCycle,
)
from orchestrator.core.formats import Feature
from orchestrator.core.log import get_logger
from orchestrator.core.redaction import hiding_texts
from orchestrator.locks.execution import ExecutionLockBusy, ExecutionLockDeadlock
from orchestrator.payloads.payloads import result_caps
from orchestrator.payloads.reference import RESULT, is_reference
from orchestrator.payloads.sizing import SMALL_BYTES, is_small
from orchestrator.tasks import scripts
from orchestrator.tasks.model import LeaseStatus, Verdict, VerdictKind, decode_envelope, root_of, without_arguments
from orchestrator.tasks.queries import awaits, envelope_bytes
from orchestrator.tasks.values import is_apart
from orchestrator.tracing.active import active
from orchestrator.workers.context import TaskContext
from orchestrator.workers.runtime.active_commands import stopped_by
from orchestrator.workers.runtime.attempt import Attempt, StopCause, TimeLimits
from orchestrator.workers.runtime.calling import HandlerCaller, Serialised
from orchestrator.workers.runtime.filling import NotFilled, fill_arguments
from orchestrator.workers.runtime.places import place, place_of
from orchestrator.workers.runtime.resources import Resources
from orchestrator.workers.runtime.slots import Slots, slot_ends
from orchestrator.workers.runtime.verdicts import (
    ArgumentsInvalid,
    OutagePolicy,
    OutageRetries,
    ValidationFailed,
    failed,
    has_asked,
    invalid,
    one_line,
    rejected,
    sole,
)
from orchestrator.workers.signals import AttemptSignal
from orchestrator.workers.skill import HandlerKind

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from orchestrator.tasks.model import Delivery, Envelope
    from orchestrator.workers.agent import Agent
    from orchestrator.workers.runtime.parts import WorkerParts
    from orchestrator.workers.runtime.throughput import Throughput

_RELEASED = Verdict(VerdictKind.RELEASED, reason="the worker stopped it before it started")
_REQUEUED = Verdict(VerdictKind.REQUEUE, reason="the worker shut down")
_NO_ROOM = Verdict(VerdictKind.RELEASED, reason="its worker process has no room for it beside other suspects")
_OUT_OF_CONTACT = "its worker had no contact with Redis, and may not know of a stop"
_CANCELLED = Verdict(VerdictKind.CANCELLED, reason="cancelled while it ran")
BLOCKED_PAUSE_S: Final = 0.05
"""Pause before the worker returns an entry that a stop command covers, because Redis may deliver it again at once."""
STORE_RESULT_S: Final = 300.0
"""How long a worker repeats the write of a result that the payload store does not take; then the attempt fails."""
DEEP_RECHECK_MS: Final = 2000
"""Longest time after which a grandchild looks again for its lock, because the holder may wait for it since."""
_log = get_logger(__name__)


class Next(Enum):
    """The next action after a step without a verdict."""

    RUN = "run"
    BLOCKED = "blocked"
    """A stop command covers it, or may: Redis handed it out before Redis or this worker knew the command."""
    DROP = "drop"
    """The task is gone, or is no longer this worker's: there is nothing to store."""


_RUN: Final = Next.RUN
_PROCESS: Final = HandlerKind.PROCESS
_SUCCEEDED: Final = VerdictKind.SUCCEEDED
_LEAN: Final = Feature.LEAN_SUCCESSES
"""What each attempt looks at. A look-up of a member of an enum takes 0.1 µs on Python 3.11."""


class Returned(msgspec.Struct, frozen=True):
    """The value that a handler returned."""

    value: Any


class Executor:
    """Runs the attempts of one agent in this process.

    Attributes:
        slots: run the attempts.
        caller: calls the handlers.
        state: what the agent's `lifespan` yielded.
    """

    def __init__(self, agent: Agent, parts: WorkerParts, throughput: Throughput) -> None:
        self.slots = Slots(agent.concurrency, attempt=self._run, unbegun=self._give_back)
        parts.waiting.add_slots(agent.name, self.slots)
        self.caller = HandlerCaller(agent, settings=parts.services.live, starter=parts.starter)
        self.state: Any = None
        self._agent, self._parts, self._throughput = agent, parts, throughput
        self._in_flight, self._completer, self._commands = parts.in_flight, parts.completer, parts.commands
        self._task_log = parts.task_log
        self._outage_retries, self._live = OutageRetries(), parts.services.live
        self._floor = parts.services.store.floor

    def _run(self, attempt: Attempt) -> Coroutine[Any, Any, None]:
        if attempt.delivery.deaths == 0 and not self._parts.suspects.closed_s:
            return self._attempt(attempt)
        return self._attempt_suspect(attempt)

    async def _attempt_suspect(self, attempt: Attempt) -> None:
        """Run an attempt of a task that died before, or any attempt while a task runs alone in this process."""
        with self._parts.suspects.admit(attempt) as admitted:
            if not admitted:
                await anyio.sleep(BLOCKED_PAUSE_S)
                self._put(attempt, _NO_ROOM)
            else:
                await self._attempt(attempt, announce=attempt.delivery.deaths > 0)

    def _give_back(self, attempt: Attempt) -> None:
        attempt.release_handler()
        if attempt.stop_cause is StopCause.LEASE_LOST:
            self._drop(attempt)
        else:
            self._put(attempt, _RELEASED)

    def _drop(self, attempt: Attempt) -> None:
        if attempt.trace is not None:
            attempt.trace.end_lost()
        self._in_flight.drop(attempt.delivery)

    def _put(self, attempt: Attempt, verdict: Verdict) -> None:
        if attempt.trace is not None:
            cause = attempt.stop_cause
            attempt.trace.end(verdict, stopped_by=None if cause is None else cause.value)
        self._completer.put(attempt.delivery, verdict)

    async def _attempt(self, attempt: Attempt, *, announce: bool = False) -> None:
        packed = attempt.delivery.envelope
        try:
            step = self._decode(attempt, packed) if packed else await self._fetch(attempt)
            if step is _RUN and (announce or _is_incomplete(attempt.envelope)):
                step = await self._before_start(attempt, announce=announce)
            if step is _RUN:
                large = len(attempt.envelope.args) > SMALL_BYTES
                step = await self._prepare_large(attempt) if large else self._prepare(attempt)
            if step is _RUN and needs_lock(attempt):
                step = await self._lock(attempt)
            if step is _RUN:
                attempt.begun_s = time.monotonic()
                try:
                    verdict = await self._perform(attempt)
                finally:
                    await _drop_locks(attempt)
                seconds = time.monotonic() - attempt.begun_s
                self._throughput.record_duration(seconds)
                if not attempt.abandoned:
                    attempt.ran_s = seconds
                    if verdict is None:
                        self._parts.timings.record(attempt, None)
                if verdict is not None:
                    self._put(attempt, verdict)
                return
        finally:
            attempt.release_handler()
        if step is Next.DROP or attempt.stop_cause is StopCause.LEASE_LOST:
            self._drop(attempt)
        elif step is Next.BLOCKED:
            self._commands.refresh()
            await anyio.sleep(BLOCKED_PAUSE_S)
            self._put(attempt, Verdict(VerdictKind.RELEASED, reason=attempt.stop_reason))
        else:
            self._put(attempt, step)

    # ------------------------------------------------------------------------------------------- before the handler

    async def _fetch(self, attempt: Attempt) -> Next | Verdict:
        """Prepare an attempt whose envelope is too large for the inbox entry."""
        if attempt.stop_requested:
            return _RELEASED
        try:
            packed = await envelope_bytes(self._parts.services.store, attempt.delivery.task_id)
        except StoreError as failure:
            return Verdict(VerdictKind.REQUEUE, reason=f"Redis did not return its record: {failure}")
        return Next.DROP if packed is None else self._decode(attempt, packed)

    def _decode(self, attempt: Attempt, packed: bytes) -> Next | Verdict:
        """Set the envelope, and check whether the attempt may start."""
        try:
            attempt.envelope = decode_envelope(packed)
        except DamagedData as unreadable:
            return rejected(f"its envelope cannot be decoded: {unreadable}")
        return self._check_start(attempt)

    def _check_start(self, attempt: Attempt) -> Next | Verdict:
        """Check whether the worker or a command forbids the start."""
        if attempt.stop_requested or self._in_flight.closed:
            return _RELEASED
        return Next.BLOCKED if self._is_blocked(attempt) else _RUN

    async def _before_start(self, attempt: Attempt, *, announce: bool) -> Next | Verdict:
        """Load large arguments, and record the start of a task that died before."""
        step: Next | Verdict = Next.RUN
        if is_apart(attempt.envelope.args):
            step = await self._read_arguments(attempt)
        elif is_reference(attempt.envelope.args):
            step = await self._load(attempt)
        if step is Next.RUN and attempt.envelope.results:
            step = await self._fill(attempt)
        if step is Next.RUN and announce:
            step = await self._announce(attempt)
        return step

    async def _announce(self, attempt: Attempt) -> Next | Verdict:
        """Record that the task starts now, so that a crash counts as a death of this task, not of those that wait."""
        delivery, services = attempt.delivery, self._parts.services
        call = scripts.begin(services.keys, rows=[(delivery.task_id, delivery.generation)])
        try:
            (status,) = await services.store.call(call, retry_for_s=services.settings.redis.command_timeout_s)
        except StoreError as failure:
            return Verdict(VerdictKind.RELEASED, reason=f"Redis did not record its start: {failure}")
        return Next.DROP if status is LeaseStatus.LOST else self._check_start(attempt)

    async def _read_arguments(self, attempt: Attempt) -> Next | Verdict:
        """Read arguments that are a field of their own in the record."""
        envelope, services, task = attempt.envelope, self._parts.services, attempt.delivery.task_id
        try:
            args = await services.values.read(task, envelope.args)
            is_there = args is not None or await services.store.execute("HEXISTS", services.keys.task(task), "state")
        except StoreError as failure:
            return Verdict(VerdictKind.REQUEUE, reason=f"Redis did not return its arguments: {failure}")
        if args is None:
            return rejected("its record has lost its arguments") if is_there else Next.DROP
        attempt.envelope = replace(envelope, args=args)
        return self._check_start(attempt)

    async def _fill(self, attempt: Attempt) -> Next | Verdict:
        """Put the results of other tasks of its flow into the arguments."""
        envelope, skill = attempt.envelope, self._agent.skills.get(attempt.envelope.skill)
        if skill is None:
            return Next.RUN  # `_prepare` releases it
        try:
            args = await fill_arguments(self._parts.services, attempt.delivery.task_id, envelope)
        except NotFilled as misfit:
            return rejected(str(misfit))
        except DamagedData as unreadable:
            return rejected(f"a result that its arguments take cannot be read: {unreadable}")
        except PayloadError as failure:
            attempt.skill, attempt.started_s = skill, time.monotonic()
            return self._failed(attempt, failure) or Next.DROP
        except StoreError as failure:
            return Verdict(VerdictKind.REQUEUE, reason=f"Redis did not return the results that it takes: {failure}")
        if args is None:
            return Next.DROP
        attempt.envelope = replace(envelope, args=args)
        return self._check_start(attempt)

    async def _load(self, attempt: Attempt) -> Next | Verdict:
        """Load arguments from the payload store. If that fails, the attempt fails, and the task may run again."""
        envelope = attempt.envelope
        skill = self._agent.skills.get(envelope.skill)
        if skill is None:
            return Next.RUN  # `_prepare` releases it
        try:
            args = await self._parts.services.payloads.load(attempt.delivery.task_id, envelope.args)
        except PayloadError as failure:
            attempt.skill, attempt.started_s = skill, time.monotonic()
            return self._failed(attempt, failure) or Next.DROP
        attempt.envelope = replace(envelope, args=args)
        return self._check_start(attempt)

    def _prepare(self, attempt: Attempt) -> Next | Verdict:
        """Set what the attempt runs: skill, context and arguments."""
        step = self._equip(attempt)
        return self._bind(attempt) if step is _RUN else step

    async def _prepare_large(self, attempt: Attempt) -> Next | Verdict:
        """Set skill, context and arguments, which are bound in a thread: with results in them they may have 64 MiB."""
        step = self._equip(attempt)
        if step is _RUN:
            step = await to_thread.run_sync(self._bind, attempt)
        return self._check_start(attempt) if step is _RUN else step

    def _equip(self, attempt: Attempt) -> Next | Verdict:
        if (tracing := active()) is not None:
            attempt.trace = self._parts.traces.begin(tracing, attempt.delivery, attempt.envelope)
        envelope = attempt.envelope
        skill = self._agent.skills.get(envelope.skill)
        if skill is None:
            return Verdict(VerdictKind.RELEASED, reason=f"no-skill {envelope.skill}")
        attempt.skill = skill
        attempt.timeout_s = envelope.timeout_s if envelope.timeout_s is not None else skill.options.timeout_s
        if skill.takes_context or self._agent.middleware:
            attempt.resources = self._open_resources(attempt)
            attempt.context = self._context(attempt, attempt.resources)
        return _RUN

    def _bind(self, attempt: Attempt) -> Next | Verdict:
        """Set the arguments. Their types may run user code."""
        skill, envelope = attempt.skill, attempt.envelope
        try:
            # The process of a handler validates its arguments itself.
            attempt.values = {} if skill.kind is _PROCESS else skill.bind(envelope.args, attempt.context)
        except InvalidInput as misfit:
            return invalid(str(misfit), skill, envelope)
        attempt.started_s = time.monotonic()
        return _RUN

    def _is_blocked(self, attempt: Attempt) -> bool:
        """Return whether the start is forbidden, and set `stop_reason`: by a command, or because one may be unknown."""
        if self._commands.outdated:
            attempt.stop_reason = _OUT_OF_CONTACT
            return True
        if not self._commands.desired.active:
            return False
        envelope = attempt.envelope
        family = root_of(attempt.delivery.task_id, envelope)
        stop = self._commands.stop_of(
            attempt.delivery.agent, skill=envelope.skill, session=envelope.session, family=family
        )
        # The heartbeat thread knows a drain before the event loop closes the worker to further starts.
        stop = stop or self._commands.desired.drain_of(self._parts.worker)
        if stop is None:
            return False
        attempt.stop_reason = one_line(stopped_by(stop))
        return True

    def _open_resources(self, attempt: Attempt) -> Resources:
        mode = attempt.skill.options.lock
        return Resources(attempt, self._parts, lock_mode=mode, lease_ms=self._agent.lease_ms)

    def _context(self, attempt: Attempt, resources: Resources) -> TaskContext:
        timeout_s = attempt.timeout_s
        return TaskContext(
            attempt.delivery,
            attempt.envelope,
            resources,
            worker=self._parts.worker,
            deadline=None if timeout_s is None else datetime.now(UTC) + timedelta(seconds=timeout_s),
            state=self.state,
        )

    async def _lock(self, attempt: Attempt) -> Next | Verdict:
        """Take the execution locks that the handler must hold before it starts."""
        if attempt.resources is None:
            attempt.resources = self._open_resources(attempt)
        locks = attempt.resources.locks.execution
        step: Next | Verdict
        try:
            await locks.take_before_start(again=may_still_run(attempt.delivery))
        except ExecutionLockBusy as busy:
            step = await self._await_lock(attempt, busy)
        except ExecutionLockDeadlock as deadlock:
            step = rejected(str(deadlock))
        except Fenced:
            step = Next.DROP
        except StoreError as failure:
            step = Verdict(VerdictKind.RELEASED, reason=f"Redis did not grant its execution lock: {failure}")
        except BaseException:
            await locks.drop()
            raise
        else:
            step = self._check_start(attempt)
            if step is Next.RUN:
                return step
        await locks.drop()
        return step

    async def _await_lock(self, attempt: Attempt, busy: ExecutionLockBusy) -> Verdict:
        """Return the verdict of an attempt whose lock is held: dead if the holder waits for it over other tasks."""
        recheck_ms = busy.recheck_ms
        # The lock itself knows the children of its holder.
        if busy.task is not None and attempt.envelope.depth > 1:
            # The task between them may begin to wait only now.
            recheck_ms = min(recheck_ms, DEEP_RECHECK_MS)
            with suppress(StoreError):
                if await awaits(self._parts.services.store, busy.task, attempt.delivery.task_id):
                    return rejected(str(ExecutionLockDeadlock(busy.scope, busy.holder)))
        return Verdict(VerdictKind.AWAIT_LOCK, delay_ms=recheck_ms, reason=one_line(str(busy)))

    # --------------------------------------------------------------------------------------------------- the handler

    async def _perform(self, attempt: Attempt) -> Verdict | None:
        """Run the handler and return its verdict, or None if the attempt was lost or ended without its handler."""
        limits = self._begin(attempt)
        try:
            call = self._call_redacted if attempt.skill.options.redact else self._call
            ended = await call(attempt)
            if attempt.trace is not None:
                attempt.trace.note_raised(ended)
        finally:
            attempt.running = False
            if self._in_flight.closed:
                self._in_flight.handler_ended()
            if limits is not None:
                limits.close()
        if attempt.abandoned:
            self._in_flight.abandoned_handlers -= 1
            return None
        if (waits := _wait(attempt, ended)) is not None:
            return waits
        if attempt.cancel_seen and await self._was_stopped(attempt):
            return self._stopped(attempt, None)
        if isinstance(ended, Returned):
            return await self._succeeded(attempt, ended.value)
        if ended is not None and not attempt.handler_cancelled:
            return self._failed(attempt, ended)
        return self._stopped(attempt, ended)

    def _begin(self, attempt: Attempt) -> TimeLimits | None:
        if self._task_log.tells_all:
            self._task_log.started(attempt)
        attempt.start(self._abandon)
        if not self.caller.begins_later(attempt.skill):
            attempt.begin()
        return _watch(attempt)

    async def _call_redacted(self, attempt: Attempt) -> Returned | BaseException | None:
        with hiding_texts():
            return await self._call(attempt)

    async def _call(self, attempt: Attempt) -> Returned | BaseException | None:
        """Call the handler and return its result or error, or None if the worker cancelled it."""
        try:
            return Returned(await self.caller.call(attempt))
        except BaseException as raised:
            # A handler may raise anything: SystemExit, or a cancellation that the worker did not request.
            if not isinstance(raised, asyncio.CancelledError):
                return raised
            if attempt.handler_cancelled:
                return None
            if slot_ends():
                raise
            return raised

    async def _was_stopped(self, attempt: Attempt) -> bool:
        """Return whether a cancel or a stop ended the handler; the event loop may learn of it after the handler."""
        if not attempt.stop_requested:
            await asyncio.sleep(0)
        if not attempt.stop_requested:
            envelope = attempt.envelope
            stop = self._commands.desired.interrupts(
                agent=attempt.delivery.agent,
                skill=envelope.skill,
                session=envelope.session,
                family=root_of(attempt.delivery.task_id, envelope),
            )
            if stop is not None:
                attempt.stop_by_command(stopped_by(stop))
        return attempt.stop_cause in {StopCause.CANCELLED, StopCause.COMMAND}

    def _abandon(self, attempt: Attempt) -> None:
        """Store a verdict for an attempt whose handler ignores its cancellation, and start a new slot for it."""
        delivery = attempt.delivery
        self._in_flight.abandoned_handlers += 1
        attempt.ran_s = time.monotonic() - attempt.begun_s
        _log.error("handler_abandoned", task=delivery.task_id, agent=delivery.agent, attempt=delivery.attempt)
        verdict = _wait(attempt, None)
        if verdict is None:
            verdict = self._stopped(attempt, TimeoutError(f"{_overrun(attempt)}, and its handler did not stop"))
        if verdict is not None:
            self._put(attempt, verdict)
        if (locks := attempt.locks_in_use) is not None:
            locks.execution.revoke()
        self.slots.give_up(attempt)

    # --------------------------------------------------------------------------------------------------- the verdict

    def _success(self, attempt: Attempt, result: bytes) -> Verdict:
        lean = not self._live.current.results.keep_arguments and self._floor.admits(_LEAN)
        kept = without_arguments(attempt.delivery.envelope, attempt.envelope) if lean else b""
        return Verdict(_SUCCEEDED, result, envelope=kept)

    def _encoded(self, attempt: Attempt, value: Any, max_bytes: int) -> Verdict:
        if isinstance(value, Serialised):
            return self._success(attempt, value.json)
        try:
            return self._success(attempt, attempt.skill.dump_result(value, max_bytes=max_bytes))
        except InvalidInput as unusable:
            return rejected(str(unusable))

    async def _succeeded(self, attempt: Attempt, value: Any) -> Verdict | None:
        """Encode the result, in a thread if it is large, and put it into the payload store if it is too large."""
        context = attempt.context
        if context is not None and context.may_lack_await and (forgotten := await context.unawaited()) is not None:
            verdict = self._failed(attempt, forgotten)
            attempt.raised_at = place(forgotten.path, forgotten.line)
            return verdict
        if self._parts.services.payloads.store is None:
            return self._encoded(attempt, value, self._live.current.results.max_bytes)
        caps = result_caps(self._live.current)
        if isinstance(value, Serialised) or is_small(value):
            verdict = self._encoded(attempt, value, caps.max_bytes)
        else:
            verdict = await to_thread.run_sync(self._encoded, attempt, value, caps.max_bytes)
        large = len(verdict.payload) > caps.inline_bytes
        return (
            await self._store_result(attempt, verdict.payload)
            if large and verdict.kind is VerdictKind.SUCCEEDED
            else verdict
        )

    async def _store_result(self, attempt: Attempt, data: bytes) -> Verdict | None:
        """Put a result into the payload store, and repeat while that fails: the work is done and must not be lost."""
        delivery, pauses = attempt.delivery, Pauses()
        part = f"{RESULT}{delivery.generation}"
        until_s = time.monotonic() + STORE_RESULT_S
        while True:
            try:
                stored = await self._parts.services.payloads.put_result(delivery.task_id, part, data)
            except (PayloadError, UpgradeUnfinished) as failure:
                if attempt.stop_requested:
                    return self._stopped(attempt, failure)
                if time.monotonic() > until_s:
                    return self._failed(attempt, failure)
                _log.warning("result_not_stored", task=delivery.task_id, agent=delivery.agent, error=str(failure))
                await anyio.sleep(pauses.next_s())
            else:
                return self._success(attempt, stored)

    def _failed(self, attempt: Attempt, failure: BaseException) -> Verdict | None:
        cause = sole(failure)
        attempt.raised_at = place_of(cause, attempt.skill)
        attempt.raised = not isinstance(cause, AttemptSignal | ValidationFailed)
        return self._judge(attempt, failure, cause)

    def _judge(self, attempt: Attempt, failure: BaseException, cause: BaseException) -> Verdict | None:
        delivery = attempt.delivery
        if isinstance(cause, Fenced) and cause.task_id == delivery.task_id:
            locks = attempt.locks_in_use
            lost_lock = locks is not None and locks.execution.lost and attempt.stop_cause is not StopCause.LEASE_LOST
            _log.warning(
                "attempt_fenced", task=delivery.task_id, agent=delivery.agent, attempt=delivery.attempt,
                cause="lock_lost" if lost_lock else "task_lost",
            )  # fmt: skip
            if lost_lock:
                return _lock_lost(cause.owner)
            # Another attempt owns the task: there is nothing to store.
            self._drop(attempt)
            return None
        if isinstance(cause, LeaseLapsed) and cause.task_id == delivery.task_id:
            return Verdict(VerdictKind.REQUEUE, reason=one_line(str(cause)))
        if isinstance(cause, WaitCycle) and cause.task_id == delivery.task_id:
            return rejected(str(cause))
        if isinstance(cause, ArgumentsInvalid):
            return invalid(str(cause), attempt.skill, attempt.envelope)
        retry = self._live.current.retry
        had_outage = self._parts.client.last_outage_s() >= attempt.started_s
        return failed(
            failure,
            delivery,
            skill=attempt.skill,
            envelope=attempt.envelope,
            backoff=ExponentialBackoff(base_s=retry.base_s, cap_s=retry.cap_s),
            outage=OutagePolicy(delivery.task_id, self._parts.services.keys.root, had_outage, self._outage_retries),
        )

    def _stopped(self, attempt: Attempt, raised: BaseException | None) -> Verdict | None:
        """Return the verdict of an attempt that the worker stopped; only after a time limit does `raised` count."""
        match attempt.stop_cause:
            case StopCause.DRAIN:
                return _REQUEUED if attempt.begun else _RELEASED
            case StopCause.COMMAND:
                return Verdict(VerdictKind.REQUEUE, reason=one_line(attempt.stop_reason))
            case StopCause.CANCELLED:
                return _CANCELLED
            case StopCause.LOCK_LOST:
                return _lock_lost(attempt.lock_owner)
            case StopCause.LEASE_LOST:
                self._drop(attempt)
                return None
        return self._failed(attempt, raised or TimeoutError(_overrun(attempt)))


def _is_incomplete(envelope: Envelope) -> bool:
    """Return whether the arguments, or parts of them, must be read before the handler starts."""
    return bool(envelope.results) or is_apart(envelope.args) or is_reference(envelope.args)


def may_still_run(delivery: Delivery) -> bool:
    """Return whether an earlier attempt may still run somewhere, so that this one must lock it out."""
    return delivery.attempt > 1 or delivery.deaths > 0


def needs_lock(attempt: Attempt) -> bool:
    """Return whether the attempt must lock something before its handler starts; most attempts lock nothing."""
    mode = attempt.skill.options.lock
    if mode == "agent":
        return True
    return attempt.envelope.session is not None and (mode == "session" or may_still_run(attempt.delivery))


async def _drop_locks(attempt: Attempt) -> None:
    if (locks := attempt.locks_in_use) is not None:
        await locks.execution.drop()


def _watch(attempt: Attempt) -> TimeLimits | None:
    silence_s = attempt.skill.options.silence_s
    if attempt.timeout_s is None and silence_s is None:
        return None
    limits = TimeLimits(attempt, timeout_s=attempt.timeout_s, silence_s=silence_s)
    if attempt.resources is not None:
        attempt.resources.timer = limits
    return limits


def _wait(attempt: Attempt, ended: Returned | BaseException | None) -> Verdict | None:
    """Return the verdict of an attempt that asked a person or joins tasks, or None if it did neither."""
    asked, join = attempt.question, attempt.join
    if (asked is None and join is None) or attempt.stop_cause in {StopCause.CANCELLED, StopCause.LEASE_LOST}:
        return None
    if ended is not None and not has_asked(ended):
        task = attempt.delivery
        _log.warning("handler_continued_after_asking", task=task.task_id, agent=task.agent, attempt=task.attempt)
    if asked is not None:
        return Verdict(VerdictKind.ASK, asked.packed, delay_ms=asked.delay_ms, at_ms=asked.at_ms, number=asked.number)
    assert join is not None
    return Verdict(VerdictKind.JOIN, delay_ms=join.delay_ms, at_ms=join.at_ms, number=join.number)


def _lock_lost(owner: str) -> Verdict:
    taken = f"; {owner} has it now" if owner else ""
    return Verdict(VerdictKind.REQUEUE, reason=f"its execution lock was lost{taken}")


def _overrun(attempt: Attempt) -> str:
    if attempt.stop_cause is StopCause.SILENCE:
        return f"the attempt gave no sign of life for {attempt.limit_s:g} s"
    return f"the attempt took longer than its timeout of {attempt.limit_s:g} s"
