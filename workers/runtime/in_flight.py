"""The entries that this worker holds: being run, or with a verdict that is not stored yet.

The loop writes, the heartbeat thread reads; a task and generation that is held is never started again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import anyio
import msgspec

from orchestrator.core.log import get_logger
from orchestrator.tasks.model import Delivery, Envelope
from workers.context import TaskContext

MAX_EARLY_CANCELS: Final = 1000
"""So many cancels are remembered of attempts that have not arrived yet."""

_log = get_logger(__name__)


class Held(msgspec.Struct, eq=False):
    """One entry in our hands.

    Attributes:
        scope: of the slot that runs it; cancels the handler.
        running: whether the handler runs.
        envelope: of its task, once that has been read.
        context: of the running attempt.
        why: the reason it was cancelled for: `cancelled`, `lost`, `stopped`, `drain`, `late`, `silent` or `fenced` (its
            execution lock is lost); empty while it runs undisturbed.
        because: by whom it was `stopped`.
        grace_s: a handler that was cancelled gets so long to end.
        unstopped: called when it has not ended by then.
        leave: frees the slot from a handler that cannot be cancelled, because it runs in a thread.
        admit_next: lets another task with a death behind it run, although this one's handler has not ended.
        abandoned: the attempt has ended without its handler.
    """

    delivery: Delivery
    grace_s: float
    scope: anyio.CancelScope | None = None
    running: bool = False
    envelope: Envelope | None = None
    context: TaskContext | None = None
    why: str = ""
    because: str = ""
    unstopped: Callable[[], None] | None = None
    leave: Callable[[], None] | None = None
    admit_next: Callable[[], None] | None = None
    stopping: bool = False
    """Its handler was told to stop while it ran."""
    abandoned: bool = False
    blocked: bool = False
    """A stop keeps it from beginning."""
    allowed_s: float = 0.0
    """The limit that ended it, when that was `late` or `silent`."""

    lease_lost: bool = False
    """Redis has told the heartbeat that it is lost; the loop may not have heard yet."""
    lock_owner: str = ""
    """Who has its execution lock, when that was lost."""

    def lock_lost(self, owner: str) -> None:
        """Stop: what it would change from now on would be refused."""
        self.lock_owner = owner or "nobody any more"
        self.stop("fenced")

    def told_to_stop(self) -> bool:
        """Whether somebody asked for its end."""
        return self.why != ""

    def forget_handler(self) -> None:
        """Let go of what the handler ran with.

        In a circle it would wait for the garbage collector, which doubles the processor time of a short task.
        """
        self.context = self.unstopped = self.leave = self.admit_next = self.scope = None

    def stop(self, why: str) -> None:
        """Cancel the handler; the first reason stands, but losing the entry overrides it, and a cancel a stop."""
        if not self.why or why == "lost" or (why == "cancelled" and self.why == "stopped"):
            self.why = why
        if self.context is not None:
            self.context.mark_cancelled()
        if not self.running or self.scope is None:
            return
        if why == "lost":
            task = self.delivery
            _log.warning("lease_lost", task=task.task_id, agent=task.agent, attempt=task.attempt)
        if not self.stopping and self.unstopped is not None:
            self.stopping = True
            asyncio.get_running_loop().call_later(self.grace_s, self.unstopped)
        self.scope.cancel()


class InFlight:
    """All held entries by agent and entry id."""

    def __init__(self, *, grace_s: float) -> None:
        self._grace_s = grace_s
        self._held: dict[tuple[str, str], Held] = {}
        self._emptied = anyio.Event()
        self._early_cancels: OrderedDict[tuple[str, str], None] = OrderedDict()
        self.abandoned_handlers = 0
        """Handlers that run on although their attempts have ended."""
        self.dropped: Callable[[], None] | None = None
        """Called, in the loop, when an entry is let go of, as long as somebody wants to know."""

    def __len__(self) -> int:
        return len(self._held)

    def add(self, delivery: Delivery) -> Held | None:
        """Hold an entry; None when it is held already (the same entry was handed out twice)."""
        place = (delivery.agent, delivery.entry)
        if place in self._held:
            return None
        held = Held(delivery, self._grace_s)
        self._held[place] = held
        if self._early_cancels and (delivery.task_id, delivery.generation) in self._early_cancels:
            held.stop("cancelled")
        return held

    def drop(self, delivery: Delivery) -> None:
        """Let go of an entry, unless it has come back to us under a new generation."""
        held = self._held.get((delivery.agent, delivery.entry))
        if held is not None and held.delivery.generation == delivery.generation:
            del self._held[delivery.agent, delivery.entry]
            if not self._held:
                self._emptied.set()
            if self.dropped is not None:
                self.dropped()

    def find(self, task_id: str, generation: str) -> Held | None:
        """An attempt by its task; safe to call from another thread."""
        for held in list(self._held.values()):
            if held.delivery.task_id == task_id and held.delivery.generation == generation:
                return held
        return None

    def cancel(self, task_id: str, generation: str) -> None:
        """Cancel an attempt; one that is still on its way is remembered."""
        held = self.find(task_id, generation)
        if held is not None:
            held.stop("cancelled")
            return
        self._early_cancels[task_id, generation] = None
        if len(self._early_cancels) > MAX_EARLY_CANCELS:
            self._early_cancels.popitem(last=False)

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
