"""The entries that this worker holds: being run, or with a verdict that is not stored yet.

The loop writes, the pulse thread reads; a task and generation that is held is never started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import msgspec

from orchestrator.core.log import get_logger
from orchestrator.tasks.model import Delivery
from workers.context import TaskContext

_log = get_logger(__name__)


class Held(msgspec.Struct, eq=False):
    """One entry in our hands.

    Attributes:
        scope: of the slot that runs it; cancels the handler.
        running: whether the handler runs.
        context: of the running attempt.
        why: the reason it was cancelled for: `cancelled`, `lost`, `drain`, `late` or `silent`; empty while it runs
            undisturbed.
        grace_s: a handler that was cancelled gets so long to end.
        unstopped: called when it has not ended by then.
        leave: frees the slot from a handler that cannot be cancelled, because it runs in a thread.
        let_next_in: lets another task with a death behind it run, although this one's handler has not ended.
        abandoned: the attempt has ended without its handler.
    """

    delivery: Delivery
    grace_s: float
    scope: anyio.CancelScope | None = None
    running: bool = False
    context: TaskContext | None = None
    why: str = ""
    unstopped: Callable[[], None] | None = None
    leave: Callable[[], None] | None = None
    let_next_in: Callable[[], None] | None = None
    stopping: bool = False
    """Its handler was told to stop while it ran."""
    abandoned: bool = False
    allowed_s: float = 0.0
    """The limit that ended it, when that was `late` or `silent`."""

    def told_to_stop(self) -> bool:
        """Whether somebody asked for its end."""
        return self.why != ""

    def stop(self, why: str) -> None:
        """Cancel the handler; the first reason stands, but losing the entry overrides it."""
        if not self.why or why == "lost":
            self.why = why
        if self.context is not None:
            self.context.cancelled = True
        if not self.running or self.scope is None:
            return
        if why == "lost":
            task = self.delivery
            _log.warning("lease_lost", task=task.task_id, agent=task.agent, attempt=task.attempt)
        if not self.stopping and self.unstopped is not None:
            self.stopping = True
            asyncio.get_running_loop().call_later(self.grace_s, self.unstopped)
        self.scope.cancel()


class Holdings:
    """All held entries by agent and entry id."""

    def __init__(self, *, grace_s: float) -> None:
        self._grace_s = grace_s
        self._held: dict[tuple[str, str], Held] = {}
        self._emptied = anyio.Event()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, delivery: Delivery) -> Held | None:
        """Hold an entry; None when it is held already (the same entry was handed out twice)."""
        place = (delivery.agent, delivery.entry)
        if place in self._held:
            return None
        held = Held(delivery, self._grace_s)
        self._held[place] = held
        return held

    def drop(self, delivery: Delivery) -> None:
        """Let go of an entry, unless it has come back to us under a new generation."""
        held = self._held.get((delivery.agent, delivery.entry))
        if held is not None and held.delivery.generation == delivery.generation:
            del self._held[delivery.agent, delivery.entry]
            if not self._held:
                self._emptied.set()

    async def empty(self) -> None:
        """Wait until nothing is held."""
        while self._held:
            self._emptied = anyio.Event()
            await self._emptied.wait()

    def get(self, agent: str, entry: str) -> Held | None:
        """The held entry, if it is."""
        return self._held.get((agent, entry))

    def of(self, agent: str) -> list[Held]:
        """A snapshot of what is held for one agent; safe to call from another thread."""
        return [held for held in list(self._held.values()) if held.delivery.agent == agent]

    def all(self) -> list[Held]:
        """A snapshot of everything held."""
        return list(self._held.values())
