"""Runs attempts: each a row of small steps from a delivery to a verdict, in long-lived slots.

envelope -> skill -> arguments -> run under a cancel scope -> verdict -> outbox. Nothing a handler does can end a slot.
"""

from __future__ import annotations

import asyncio
import contextvars
import math
import time
import traceback
from collections import deque
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from msgspec import DecodeError

from orchestrator.core.backoff import Backoff
from orchestrator.core.errors import InvalidInput, ServerFull, ServerUnavailable, StoreError
from orchestrator.core.log import get_logger
from orchestrator.tasks.model import Delivery, Envelope, Verdict, VerdictKind, decode_envelope
from orchestrator.tasks.queries import envelope_bytes
from workers.context import TaskContext
from workers.runtime import holdings as held_entries
from workers.signals import Reject, Retry, Snooze

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orchestrator.client.client import Orchestrator
    from orchestrator.services import Services
    from workers.agent import Agent
    from workers.runtime.holdings import Held, Holdings
    from workers.runtime.outbox import Outbox
    from workers.skill import Skill

ERROR_BYTES: Final = 8192
"""A traceback is cut to this, in the middle: its ends say most."""

HURT_SERVER_STEP: Final = 3
"""A task that met a hurt server comes back after the delay of this many failures."""

_UNSTARTED = Verdict(VerdictKind.UNSTARTED, reason="drained before it started")
_BACK = Verdict(VerdictKind.BACK, reason="given back by a worker that stops")
_log = get_logger(__name__)


class Executor:
    """The slots of one agent in this process."""

    def __init__(
        self,
        agent: Agent,
        *,
        services: Services,
        holdings: Holdings,
        outbox: Outbox,
        worker: str,
        client: Callable[[], Awaitable[Orchestrator]],
        alone: anyio.Lock,
        took: Callable[[float], None],
    ) -> None:
        self._agent, self._services, self._holdings, self._outbox = agent, services, holdings, outbox
        self._worker, self._client, self._alone, self._took = worker, client, alone, took
        retry = services.settings.retry
        self._backoff = Backoff(base_s=retry.base_s, cap_s=retry.cap_s)
        self._max_bytes = services.settings.results.max_bytes
        self._feed: deque[Held] = deque()
        self._idle: list[asyncio.Future[None]] = []
        self._free = agent.concurrency
        self._freed = anyio.Event()
        self._soiled = 0
        self._slot_ended = anyio.Event()

    @property
    def free(self) -> int:
        """Slots without work."""
        return self._free

    async def wait_free(self) -> int:
        """Wait until at least one slot has no work; answer how many."""
        while self._free == 0:
            self._freed = anyio.Event()
            await self._freed.wait()
        return self._free

    def start(self, held: Held) -> None:
        """Give an entry to a free slot."""
        self._free -= 1
        self._feed.append(held)
        if self._idle:
            waiting = self._idle.pop()
            if not waiting.done():
                waiting.set_result(None)

    async def run(self) -> None:
        """Run all slots, until cancelled; one that a handler has soiled is replaced by a fresh one."""
        async with anyio.create_task_group() as slots:
            for _ in range(self._agent.concurrency):
                slots.start_soon(self._run_slot)
            while True:
                await self._slot_ended.wait()
                self._slot_ended = anyio.Event()
                while self._soiled:
                    self._soiled -= 1
                    slots.start_soon(self._run_slot)

    async def _run_slot(self) -> None:
        """Run attempts one after another, until cancelled or soiled."""
        clean = contextvars.copy_context()
        while True:
            while not self._feed:
                waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._idle.append(waiting)
                try:
                    await waiting
                except asyncio.CancelledError:
                    if waiting in self._idle:
                        self._idle.remove(waiting)
                    raise
            held = self._feed.popleft()
            try:
                await self._run(held)
            finally:
                if not held.abandoned:
                    self._slot_is_free()
            if held.abandoned:
                return
            if await _cancelled_itself() or contextvars.copy_context() != clean:
                # Context variables cannot be unset from outside: the next attempt gets a task of its own.
                self._replace_slot()
                return

    def _slot_is_free(self) -> None:
        self._free += 1
        if self._free == 1:
            self._freed.set()

    def _replace_slot(self) -> None:
        self._soiled += 1
        self._slot_ended.set()

    async def _run(self, held: Held) -> None:
        if held.delivery.deaths == 0:
            await self._attempt(held)
            return
        # One task that has killed a worker must not take neighbours of its kind with it (protocol rule 8).
        async with self._alone:
            await self._attempt(held)

    async def _attempt(self, held: Held) -> None:
        delivery = held.delivery
        if held.why:
            self._leave(held, _UNSTARTED)
            return
        try:
            envelope = await self._envelope(delivery)
        except StoreError as failure:
            self._leave(held, Verdict(VerdictKind.BACK, reason=f"its record could not be read: {failure}"))
            return
        except DecodeError as unreadable:
            reason = f"its envelope cannot be read: {unreadable}"
            self._leave(held, Verdict(VerdictKind.DEAD, reason.encode(), reason=reason))
            return
        if envelope is None:
            self._holdings.drop(delivery)  # deleted while it waited: nothing to run, nothing to store
            return
        if held.told_to_stop():  # while its record was read
            self._leave(held, _UNSTARTED)
            return
        skill = self._agent.skills.get(envelope.skill)
        if skill is None:
            self._leave(held, Verdict(VerdictKind.UNSTARTED, reason=f"no-skill {envelope.skill}"))
            return
        timeout_s = envelope.timeout_s if envelope.timeout_s is not None else skill.options.timeout_s
        context = held.context = self._context(delivery, envelope, timeout_s)
        try:
            values = skill.bind(envelope.args, context)
        except InvalidInput as misfit:
            self._leave(held, Verdict(VerdictKind.DEAD, _cut(str(misfit)), reason=_line(str(misfit))))
            return
        started_s = time.monotonic()
        verdict = await self._perform(held, skill, envelope, values, timeout_s=timeout_s)
        self._took(time.monotonic() - started_s)
        if verdict is not None:
            self._outbox.put(delivery, verdict)

    async def _envelope(self, delivery: Delivery) -> Envelope | None:
        if delivery.envelope:
            return decode_envelope(delivery.envelope)
        data = await envelope_bytes(self._services.store, delivery.task_id)
        return None if data is None else decode_envelope(data)

    def _context(self, delivery: Delivery, envelope: Envelope, timeout_s: float | None) -> TaskContext:
        deadline = None if timeout_s is None else datetime.now(UTC) + timedelta(seconds=timeout_s)
        return TaskContext(delivery, envelope, worker=self._worker, deadline=deadline, client=self._client)

    async def _perform(
        self,
        held: Held,
        skill: Skill[Any, Any],
        envelope: Envelope,
        values: dict[str, Any],
        *,
        timeout_s: float | None,
    ) -> Verdict | None:
        failure: BaseException | None = None
        value: Any = None
        returned = False
        scope = anyio.CancelScope() if timeout_s is None else anyio.move_on_after(timeout_s)
        held.scope, held.unstopped = scope, partial(self._abandon, held, skill, envelope, timeout_s)
        grace = timeout_s and asyncio.get_running_loop().call_later(timeout_s + held_entries.GRACE_S, held.unstopped)
        try:
            with scope:
                value = await skill.handler(**values)
                returned = True
        except BaseException as raised:
            # A handler may raise what it likes, also SystemExit or a cancellation that nobody asked for.
            if isinstance(raised, asyncio.CancelledError) and _worker_ends():
                raise
            failure = raised
        finally:
            held.scope = None
            if grace:
                grace.cancel()
        if held.abandoned:
            return None
        if returned:
            return self._succeeded(skill, value)
        if failure is None or (held.why and scope.cancel_called):
            stopped = self._stopped(held)
            if stopped is not None or held.why == "lost":
                return stopped
            failure = failure or TimeoutError(f"the attempt took longer than its timeout of {timeout_s:g} s")
        return self._failed(held.delivery, skill, envelope, failure)

    def _abandon(self, held: Held, skill: Skill[Any, Any], envelope: Envelope, timeout_s: float | None) -> None:
        """End an attempt without its handler, which ignores its cancellation; a fresh slot takes its place."""
        if held.scope is None or held.abandoned:
            return
        held.abandoned = True
        one = held.delivery
        _log.error(
            "handler_ignores_cancellation", task=one.task_id, agent=one.agent, attempt=one.attempt,
            meaning="its attempt has ended without it; it still runs in this process",
        )  # fmt: skip
        verdict = self._stopped(held)
        if verdict is None and held.why != "lost":
            late = f"the attempt took longer than its timeout of {timeout_s or 0:g} s, and its handler did not stop"
            verdict = self._failed(one, skill, envelope, TimeoutError(late))
        if verdict is not None:
            self._outbox.put(one, verdict)
        self._slot_is_free()
        self._replace_slot()

    def _succeeded(self, skill: Skill[Any, Any], value: Any) -> Verdict:
        try:
            return Verdict(VerdictKind.SUCCEEDED, skill.dump_result(value, max_bytes=self._max_bytes))
        except InvalidInput as misfit:
            # The next attempt would return the same.
            return Verdict(VerdictKind.DEAD, _cut(str(misfit)), reason=_line(str(misfit)))

    def _stopped(self, held: Held) -> Verdict | None:
        if held.why == "drain":
            return _BACK
        if held.why == "cancelled":
            return Verdict(VerdictKind.CANCELLED, reason="cancelled while it ran")
        if held.why == "lost":
            self._holdings.drop(held.delivery)
        return None

    def _failed(
        self, delivery: Delivery, skill: Skill[Any, Any], envelope: Envelope, failure: BaseException
    ) -> Verdict:
        if isinstance(failure, Snooze):
            reason = _line(failure.reason)
            return Verdict(VerdictKind.SNOOZE, delay_ms=failure.delay_ms, at_ms=failure.at_ms, reason=reason)
        if isinstance(failure, Reject):
            return Verdict(VerdictKind.DEAD, _cut(failure.reason), reason=_line(failure.reason))
        reason = _describe(failure)
        if isinstance(failure, ServerFull | ServerUnavailable):
            # Redis was hurt, not the task: no attempt counted (protocol rule 25).
            pause_ms = round(self._backoff.delay_s(HURT_SERVER_STEP) * 1000)
            return Verdict(VerdictKind.SNOOZE, delay_ms=pause_ms, reason=reason)
        failures = delivery.attempt - delivery.deaths
        max_attempts = envelope.max_attempts or skill.options.max_attempts
        error = _traceback(failure)
        if failures >= max_attempts:
            _log.error(
                "task_failed", task=delivery.task_id, agent=delivery.agent, attempt=delivery.attempt, reason=reason
            )
            return Verdict(VerdictKind.DEAD, error, reason=reason)
        delay_ms = failure.delay_ms if isinstance(failure, Retry) else None
        if delay_ms is None:
            delay_ms = skill.retry_after_ms(failures, self._backoff)
        _log.warning(
            "attempt_failed", task=delivery.task_id, agent=delivery.agent, attempt=delivery.attempt, reason=reason,
            retry_in_ms=delay_ms,
        )  # fmt: skip
        return Verdict(VerdictKind.RETRY, error, delay_ms=delay_ms, reason=reason)

    def _leave(self, held: Held, verdict: Verdict) -> None:
        if held.why == "lost":
            self._holdings.drop(held.delivery)
        else:
            self._outbox.put(held.delivery, verdict)


def _worker_ends() -> bool:
    """Whether the slot itself is being cancelled, not only what runs in it."""
    return anyio.current_effective_deadline() == -math.inf


async def _cancelled_itself() -> bool:
    """Whether a handler has left a cancellation of its own task behind; takes it away."""
    task = asyncio.current_task()
    assert task is not None
    if not task.cancelling() or _worker_ends():
        return False
    while task.cancelling():
        task.uncancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        if _worker_ends():
            raise
    return True


def _describe(failure: BaseException) -> str:
    """One line about an exception, even about one whose text cannot be made."""
    try:
        text = str(failure)
    except Exception:  # noqa: BLE001 - handlers may raise anything
        text = "(its message could not be made)"
    name = type(failure).__name__
    return _line(f"{name}: {text}" if text else name)


def _line(text: str) -> str:
    return " ".join(text.encode(errors="replace").decode().split())[:500]


def _traceback(failure: BaseException) -> bytes:
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
