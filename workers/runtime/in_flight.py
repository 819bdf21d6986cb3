"""The attempts that this worker holds: running, or with a verdict that is not stored yet.

The event loop writes, the heartbeat thread reads. A worker never starts a task and generation that it holds again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.workers.runtime.attempt import Attempt, StopCause

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.tasks.model import Delivery

MAX_EARLY_CANCELS: Final = 1000
"""Cancels that are kept for attempts that have not arrived yet."""


class InFlight:
    """All attempts by agent and entry id."""

    def __init__(self, *, grace_s: Callable[[], float]) -> None:
        self._grace_s = grace_s
        self._attempts: dict[str, dict[str, Attempt]] = {}
        """By agent and entry; an agent without attempts stays, so that other threads may copy the values."""
        self._count = 0
        self._emptied, self._handler_ended = anyio.Event(), anyio.Event()
        self._early_cancels: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.closed = False
        """No further handler may begin, because the worker drains. A signal sets it also while the loop is blocked."""
        self.abandoned_handlers = 0
        """Handlers that still run although their attempts have ended."""
        self.on_drop: Callable[[], None] | None = None
        """Called in the event loop when an attempt is dropped, while command receipts wait for that."""

    def __len__(self) -> int:
        return self._count

    def add(self, delivery: Delivery) -> Attempt | None:
        """Add an entry and return its attempt, or None if the worker already holds the entry."""
        attempts = self._attempts.get(delivery.agent)
        if attempts is None:
            attempts = self._attempts[delivery.agent] = {}
        elif delivery.entry in attempts:
            return None
        attempt = attempts[delivery.entry] = Attempt(delivery, self._grace_s())
        self._count += 1
        if self._early_cancels and (delivery.task_id, delivery.generation) in self._early_cancels:
            attempt.stop(StopCause.CANCELLED)
        if self.closed:
            attempt.stop(StopCause.DRAIN)
        return attempt

    def close(self) -> None:
        """Let no further handler begin, and stop the attempts that wait for that."""
        self.closed = True
        for attempt in self.all():
            if not attempt.begun:
                attempt.stop(StopCause.DRAIN)

    def reopen(self) -> None:
        """Let handlers begin again."""
        self.closed = False

    def drop(self, delivery: Delivery) -> Attempt | None:
        """Remove an entry and return its attempt, or None if it is gone or came back under a new generation."""
        attempt = self.get(delivery.agent, delivery.entry)
        if attempt is None or attempt.delivery.generation != delivery.generation:
            return None
        del self._attempts[delivery.agent][delivery.entry]
        self._count -= 1
        if not self._count:
            self._emptied.set()
        if (on_drop := self.on_drop) is not None:
            on_drop()
        return attempt

    def find(self, task_id: str, generation: str) -> Attempt | None:
        """Find an attempt by its task; safe from any thread."""
        for attempt in self.all():
            if attempt.delivery.task_id == task_id and attempt.delivery.generation == generation:
                return attempt
        return None

    def cancel(self, task_id: str, generation: str) -> None:
        """Cancel an attempt, also one that has not arrived yet."""
        attempt = self.find(task_id, generation)
        if attempt is not None:
            attempt.stop(StopCause.CANCELLED)
            return
        self._early_cancels[task_id, generation] = None
        if len(self._early_cancels) > MAX_EARLY_CANCELS:
            self._early_cancels.popitem(last=False)

    def handler_ended(self) -> None:
        """Wake `wait_handlers`; called when a handler has ended and the worker drains."""
        self._handler_ended.set()
        self._handler_ended = anyio.Event()

    async def wait_handlers(self) -> None:
        """Wait until no handler runs."""
        while any(attempt.running for attempt in self.all()):
            await self._handler_ended.wait()

    async def wait_empty(self) -> None:
        """Wait until no attempt is left."""
        while self._count:
            self._emptied = anyio.Event()
            await self._emptied.wait()

    def get(self, agent: str, entry: str) -> Attempt | None:
        """Find an attempt by its entry."""
        attempts = self._attempts.get(agent)
        return None if attempts is None else attempts.get(entry)

    def of(self, agent: str) -> list[Attempt]:
        """Copy the attempts of one agent; safe from any thread."""
        return list(self._attempts.get(agent, {}).values())

    def all(self) -> list[Attempt]:
        """Copy all attempts; safe from any thread."""
        return [attempt for attempts in list(self._attempts.values()) for attempt in list(attempts.values())]
