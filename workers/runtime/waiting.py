"""Lends the slots of attempts that wait for children, and records for which tasks they wait (protocol rule 32).

A wait lends the slot at once. A batch then tells Redis, and repeats all that it told every second while a parent waits,
so that a lost statement, and a child that becomes ready again, cost a second.
"""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import StoreError, WaitCycle
from orchestrator.core.log import get_logger
from orchestrator.tasks import scripts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from orchestrator.services import Services
    from orchestrator.workers.runtime.attempt import Attempt
    from orchestrator.workers.runtime.slots import Slots

REPEAT_S: Final = 1.0
MAX_RECORDED: Final = 1000
"""Awaited tasks of one attempt that Redis knows, and of one call."""

_log = get_logger(__name__)


@dataclass(eq=False)
class Wait:
    """One wait of a handler.

    Attributes:
        children: ids of the tasks, any of which may end it.
        scope: cancelled when the wait would never end.
        cycle: the tasks from the awaited one to the parent, if it would never end.
    """

    children: Sequence[str]
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    cycle: Sequence[str] = ()


@dataclass(eq=False)
class _Parent:
    """An attempt that waits.

    Attributes:
        depth: number of tasks above it that may wait for it.
        taking: set when it has its slot back; None while it does not want it.
    """

    attempt: Attempt
    slots: Slots
    depth: int
    waits: list[Wait] = field(default_factory=list)
    taking: anyio.Event | None = None

    @property
    def awaited(self) -> list[str]:
        return list(dict.fromkeys(id_ for wait in self.waits for id_ in wait.children))[:MAX_RECORDED]


class Waiting:
    """The waits of all attempts of one worker."""

    def __init__(self, services: Services, *, worker: str) -> None:
        self._services, self._worker = services, worker
        self._slots: dict[str, Slots] = {}
        self._parents: dict[Attempt, _Parent] = {}
        self._changed_parents: dict[_Parent, None] = {}
        self._stated: dict[str, str] = {}
        self._changed = anyio.Event()

    def add_slots(self, agent: str, slots: Slots) -> None:
        """Lend the slots of an agent."""
        self._slots[agent] = slots

    def expect(self, agent: str) -> None:
        """Note that awaited tasks may arrive in the inbox of an agent."""
        if (slots := self._slots.get(agent)) is not None:
            slots.open_lent(expected=True)

    @asynccontextmanager
    async def until_ended(self, attempt: Attempt, children: Sequence[str]) -> AsyncIterator[None]:
        """Lend the slot of an attempt while the block waits for one of these tasks.

        While an attempt waits in several places, it goes on without a slot after each of them but the last.

        Raises:
            WaitCycle: one of the tasks waits for the task of the attempt.
        """
        slots = self._slots.get(attempt.delivery.agent)
        if slots is None or not attempt.running or attempt.stop_requested:
            yield
            return
        parent = self._parents.get(attempt)
        if parent is None:
            parent = self._parents[attempt] = _Parent(attempt, slots, attempt.envelope.depth)
        wait = Wait(children)
        parent.waits.append(wait)
        if not attempt.lends:
            slots.lend(attempt)
        self._note(parent)
        try:
            with wait.scope:
                yield
        finally:
            parent.waits.remove(wait)
            self._note(parent)
            if not parent.waits:
                await self._take_back(parent)
        if wait.cycle:
            raise WaitCycle(attempt.delivery.task_id, wait.cycle)

    async def _take_back(self, parent: _Parent) -> None:
        attempt = parent.attempt
        # A scope of the handler may be cancelled, and the handler may go on behind it.
        with anyio.CancelScope(shield=True) as shield:
            if parent.taking is not None:
                await parent.taking.wait()
            elif attempt.lends and attempt.running and not attempt.stop_requested:
                parent.taking = anyio.Event()
                attempt.leave_wait = shield.cancel
                try:
                    await parent.slots.take_back(attempt, parent.depth)
                finally:
                    attempt.leave_wait = None
                    parent.taking.set()
                    parent.taking = None
                if parent.waits:
                    # It waits elsewhere again.
                    parent.slots.lend(attempt)
                self._note(parent)
        if not parent.waits and parent.taking is None and self._parents.get(attempt) is parent:
            del self._parents[attempt]

    def _note(self, parent: _Parent) -> None:
        self._changed_parents[parent] = None
        self._changed.set()

    # ------------------------------------------------------------------------------------------------------ statements

    async def run(self) -> None:
        """Tell Redis what has changed, until cancelled."""
        pauses = Pauses(cap_s=REPEAT_S)
        while True:
            with anyio.move_on_after(REPEAT_S if self._parents or self._stated else None) as repeat:
                await self._changed.wait()
            if repeat.cancelled_caught:
                self._changed_parents.update(dict.fromkeys(self._parents.values()))
            self._changed = anyio.Event()
            parents, self._changed_parents = self._changed_parents, {}
            try:
                await self._state(list(parents))
            except StoreError as failure:
                _log.debug("waits_not_recorded", error=str(failure))
                self._changed_parents = parents | self._changed_parents
                self._changed.set()
                await anyio.sleep(pauses.next_s())
            else:
                pauses.reset()

    async def _state(self, parents: Sequence[_Parent]) -> None:
        left = [parent for parent in parents if parent.attempt.running]
        while True:
            told, number = list[_Parent](), 0
            while left and number < MAX_RECORDED:
                told.append(left.pop())
                number += 1 + len(told[-1].waits)
            await self._tell(told)
            if not left:
                return

    async def _tell(self, parents: Sequence[_Parent]) -> None:
        for attempt in [attempt for attempt in self._parents if not attempt.running]:
            # The handler has ended and left a wait behind.
            del self._parents[attempt]
        counts = self._counts()
        call = scripts.lend(
            self._services.keys,
            worker=self._worker,
            rows=[
                scripts.WaitRow(
                    parent.attempt.delivery.task_id, parent.attempt.delivery.generation, " ".join(parent.awaited)
                )
                for parent in parents
            ],
            agents=[scripts.LentRow(agent, text) for agent, text in counts.items()],
        )
        reply = await self._services.store.call(call)
        self._stated = {agent: text for agent, text in counts.items() if text}
        for parent, recorded in zip(parents, reply.recorded, strict=True):
            self._apply(parent, recorded)
        for agent, expected in zip(counts, reply.expects, strict=True):
            self._slots[agent].open_lent(expected=expected)

    def _counts(self) -> dict[str, str]:
        """Return the attempts that lend by agent and depth; '' for an agent whose attempts lend no more."""
        by_agent: dict[str, Counter[int]] = {agent: Counter() for agent in self._stated}
        for parent in self._parents.values():
            if parent.attempt.lends:
                by_agent.setdefault(parent.attempt.delivery.agent, Counter())[parent.depth] += 1
        return {
            agent: " ".join(f"{depth}={number}" for depth, number in sorted(counter.items()))
            for agent, counter in by_agent.items()
        }

    def _apply(self, parent: _Parent, recorded: scripts.Recorded) -> None:
        if recorded.depth is not None and recorded.depth != parent.depth:
            parent.depth = recorded.depth
            self._note(parent)
        for wait in parent.waits:
            if recorded.cycle and recorded.cycle[0] in wait.children:
                wait.cycle = recorded.cycle
                wait.scope.cancel()
