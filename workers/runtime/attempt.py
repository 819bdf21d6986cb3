"""One attempt in a worker: its state, how it is stopped, and its time limits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import anyio
import msgspec

from orchestrator.core.log import get_logger
from orchestrator.tasks.model import Delivery, Envelope
from orchestrator.workers.context import AttemptResources, TaskContext
from orchestrator.workers.runtime.attempt_traces import AttemptTrace
from orchestrator.workers.skill import Skill

if TYPE_CHECKING:
    from orchestrator.locks.attempt import AttemptLocks
    from orchestrator.workers.asking import PendingQuestion
    from orchestrator.workers.joining import PendingJoin

_UNREAD: Final = Envelope("", b"")
_UNPREPARED: Any = None
_log = get_logger(__name__)


class StopCause(Enum):
    """The reason to stop an attempt."""

    CANCELLED = "cancelled"
    """A client or an operator cancelled the task."""
    COMMAND = "command"
    """An operator's stop command covers it."""
    DRAIN = "drain"
    """The worker shuts down."""
    LEASE_LOST = "lease_lost"
    """The task no longer belongs to this worker."""
    LOCK_LOST = "lock_lost"
    """Another task has its execution lock, so Redis would refuse its changes."""
    SILENCE = "silence"
    """It gave no sign of life for the skill's `silence`."""
    TIMEOUT = "timeout"
    """It ran longer than its timeout."""


class Attempt(msgspec.Struct, eq=False):
    """One inbox entry that this worker holds, from its delivery until its verdict is stored.

    The event loop writes it. The heartbeat thread reads it, sets `leased_until_s`, and calls `mark_cancelled` and
    `mark_lease_lost`.

    Attributes:
        grace_s: time for a cancelled handler to end, before the worker abandons it.
        envelope: blank until it is read.
        skill: set by `prepare`, as are `values`, `timeout_s` and `started_s`.
        context: None if neither the handler nor a middleware takes it.
        resources: of its context and locks; None before and after the handler, and without both.
        scope: cancel scope of the slot that runs it.
        running: whether its handler runs; True also while a process for it starts.
        begun_s: monotonic time at which its handler was called.
        ran_s: how long its handler ran; None while it has not ended.
        begun: whether code of the user has begun, so that it is stopped as a handler is.
        abandoned: whether it ended while its handler goes on.
        stop_cause: None while nothing stops it.
        stop_reason: one line about the stop command.
        lock_owner: the new owner of its execution lock, for LOCK_LOST.
        limit_s: the limit that it exceeded, for TIMEOUT and SILENCE.
        leave_thread: makes the slot stop waiting for a handler that runs in a thread.
        leased_until_s: monotonic time at which its lease lapses, counted from before the last call that renewed it.
        leave_group: gives the room of a suspect to the next one; see `Suspects`.
        lends: whether it waits for a child and lends its slot; see `Slots`.
        trace: its spans; None in a worker that does not trace.
        start_logged: whether its start was written to the log; None if starts are not written.
        raised_at: file and line of the exception that ended it.
        raised: whether an exception ended it that was no signal, so that its verdict has a traceback.
        leave_wait: ends the wait of a handler that wants its slot back, because the attempt is being stopped.
    """

    delivery: Delivery
    grace_s: float
    envelope: Envelope = _UNREAD
    skill: Skill[Any, Any] = _UNPREPARED
    values: dict[str, Any] = _UNPREPARED
    timeout_s: float | None = None
    started_s: float = 0.0
    begun_s: float = 0.0
    ran_s: float | None = None
    context: TaskContext | None = None
    resources: AttemptResources | None = None
    scope: anyio.CancelScope | None = None
    running: bool = False
    begun: bool = False
    abandoned: bool = False
    stop_cause: StopCause | None = None
    stop_reason: str = ""
    lock_owner: str = ""
    limit_s: float = 0.0
    leased_until_s: float = math.inf
    leave_thread: Callable[[], None] | None = None
    leave_group: Callable[[], None] | None = None
    lends: bool = False
    leave_wait: Callable[[], None] | None = None
    trace: AttemptTrace | None = None
    start_logged: bool | None = None
    raised_at: str = ""
    raised: bool = False
    _abandon: Callable[[Attempt], None] | None = None
    _handler_cancelled: bool = False
    _lease_lost: bool = False

    @property
    def stop_requested(self) -> bool:
        """True if anything asked it to end."""
        return self.stop_cause is not None

    @property
    def owns_task(self) -> bool:
        """True if the task belongs to this worker, as far as it knows."""
        return self.stop_cause is not StopCause.LEASE_LOST and not self._lease_lost

    @property
    def handler_cancelled(self) -> bool:
        """True if the worker cancelled its running handler."""
        return self._handler_cancelled

    @property
    def cancel_seen(self) -> bool:
        """True if its handler has read `ctx.cancelled` as True."""
        return self.resources is not None and self.resources.cancel_seen

    @property
    def locks_in_use(self) -> AttemptLocks | None:
        """Its locks, if its handler or the executor has asked for them."""
        return None if self.resources is None else self.resources.locks_in_use

    @property
    def question(self) -> PendingQuestion | None:
        """The question that it ends with, if its handler has asked one."""
        return None if self.resources is None else self.resources.question

    @property
    def join(self) -> PendingJoin | None:
        """The join that it ends with, if its handler joins tasks that have not ended."""
        return None if self.resources is None else self.resources.join

    # ------------------------------------------------------------------------------------------------- the handler

    def begin(self) -> bool:
        """Mark that code of the user begins now; returns False if it must not, because the attempt is being stopped."""
        self.begun = not self.stop_requested
        return self.begun

    def start(self, abandon: Callable[[Attempt], None]) -> None:
        """Mark the handler as running.

        Args:
            abandon: called with the attempt when its handler ignores a cancellation for `grace_s`.
        """
        self.running = True
        self._abandon = abandon

    def abandon_handler(self) -> None:
        """End the attempt without its handler, unless that has ended."""
        if self.running and not self.abandoned and self._abandon is not None:
            self.abandoned = True
            self._abandon(self)
            for release in (self.leave_thread, self.leave_group):
                if release is not None:
                    release()

    def release_handler(self) -> None:
        """Drop all references to what the handler ran with.

        A reference cycle would wait for the garbage collector, which doubles the processor time of a short task.
        """
        self.context = self.resources = self.scope = self.leave_thread = self.leave_group = self._abandon = None
        self.leave_wait = None
        self.values = _UNPREPARED
        if self.trace is not None:
            self.trace.leave()

    # ------------------------------------------------------------------------------------------------------ stopping

    def stop(self, cause: StopCause) -> None:
        """Cancel the handler, or the wait for its start.

        The first cause stays, except that LEASE_LOST replaces all, and CANCELLED a COMMAND.
        """
        if (
            self.stop_cause is None
            or cause is StopCause.LEASE_LOST
            or (cause is StopCause.CANCELLED and self.stop_cause is StopCause.COMMAND)
        ):
            self.stop_cause = cause
        self.mark_cancelled()
        if self.scope is None:
            return
        if not self.running:
            if not self.begun:
                self.scope.cancel()
            return
        if cause is StopCause.LEASE_LOST:
            task = self.delivery
            _log.warning("lease_lost", task=task.task_id, agent=task.agent, attempt=task.attempt)
        if not self._handler_cancelled:
            self._handler_cancelled = True
            asyncio.get_running_loop().call_later(self.grace_s, self.abandon_handler)
        if self.leave_wait is not None:
            self.leave_wait()
        self.scope.cancel()

    def stop_by_command(self, reason: str) -> None:
        """Stop it because a stop command covers it."""
        self.stop_reason = self.stop_reason or reason
        self.stop(StopCause.COMMAND)

    def stop_at_limit(self, cause: StopCause, limit_s: float) -> None:
        """Stop it because it exceeded a time limit."""
        self.limit_s = limit_s
        self.stop(cause)

    def stop_without_lock(self, owner: str) -> None:
        """Stop it because its execution lock is lost."""
        self.lock_owner = owner
        self.stop(StopCause.LOCK_LOST)

    def mark_cancelled(self) -> None:
        """Set `ctx.cancelled`; safe from any thread."""
        if (resources := self.resources) is not None:
            resources.cancelled = True

    def mark_lease_lost(self) -> None:
        """Note that the lease is lost before the event loop can `stop` the attempt; safe from any thread."""
        self._lease_lost = True


class TimeLimits:
    """Stops an attempt at its timeout, or after too long a silence.

    One timer serves both. A sign of life does not reset it: when it fires, it checks how much time is left.
    """

    def __init__(self, attempt: Attempt, *, timeout_s: float | None, silence_s: float | None) -> None:
        self._loop, self._attempt = asyncio.get_running_loop(), attempt
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._silence_s = math.inf if silence_s is None else silence_s
        self._started_s = self._last_sign_s = self._loop.time()
        self._timer = self._loop.call_at(self._due_s(), self._check)

    def _due_s(self) -> float:
        return min(self._started_s + self._timeout_s, self._last_sign_s + self._silence_s)

    def _check(self) -> None:
        due_s = self._due_s()
        if self._loop.time() < due_s:
            self._timer = self._loop.call_at(due_s, self._check)
        elif due_s == self._started_s + self._timeout_s:
            self._attempt.stop_at_limit(StopCause.TIMEOUT, self._timeout_s)
        else:
            self._attempt.stop_at_limit(StopCause.SILENCE, self._silence_s)

    def extend(self, seconds: float) -> None:
        """Move the timeout."""
        self._timeout_s += seconds

    def record_sign(self) -> None:
        """Restart the silence limit."""
        self._last_sign_s = self._loop.time()

    def close(self) -> None:
        """Stop the timer."""
        self._timer.cancel()
