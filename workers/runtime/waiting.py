"""Lends the slots of attempts that wait for children, and records for which tasks they wait (protocol rule 32).

A wait lends the slot at once. A batch then tells Redis what has changed. Small calls look at the awaited tasks: at the
first ones of a parent at once, and at the next ones in turn every second. So the work depends neither on the number of
children nor on that of their ends.
"""

from __future__ import annotations

import math
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
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
"""Awaited tasks of one attempt that Redis knows."""
LOOK_AT: Final = 100
"""Awaited tasks that one call looks at, and those of one attempt that Redis knows at once."""
LOOK_AGAIN: Final = 1000
"""Awaited tasks of all attempts of a worker that Redis looks at in a repetition."""

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
        looked: awaited tasks that Redis has looked at and that have not ended, as far as is known here.
        recorded: the awaited tasks in Redis, without those that have ended; None if that is not known.
        size: bytes of the record.
        turn: the awaited task that the next repetition begins with.
    """

    attempt: Attempt
    slots: Slots
    depth: int
    waits: dict[Wait, None] = field(default_factory=dict)
    taking: anyio.Event | None = None
    looked: set[str] = field(default_factory=set)
    recorded: set[str] | None = field(default_factory=set)
    size: int = 0
    turn: int = 0

    @property
    def awaited(self) -> list[str]:
        return list(dict.fromkeys(id_ for wait in self.waits for id_ in wait.children))

    def ended(self, child: str) -> bool:
        """Note that an awaited task has ended; return whether Redis should look at more of them."""
        self.looked.discard(child)
        if self.recorded is not None:
            self.recorded.discard(child)
        return len(self.looked) < LOOK_AT // 2 and len(self.looked) < len(self.waits)

    def statement(self, again: int) -> _Statement | None:
        """Return what Redis does not know; None if it knows all.

        Args:
            again: number of tasks to look at once more, in turn; with them, all tasks are recorded.
        """
        awaited = self.awaited
        if not awaited:
            return None if self.recorded == set() else _Statement(self, [], [])
        self.looked.intersection_update(awaited)
        look = list[str]()
        if len(self.looked) < min(len(awaited), LOOK_AT // 2):
            look = list(islice((id_ for id_ in awaited if id_ not in self.looked), LOOK_AT))
        if again:
            self.turn = self.turn if self.turn < len(awaited) else 0
            look = list(dict.fromkeys(look + awaited[self.turn : self.turn + again]))[:LOOK_AT]
            self.turn += again
        record = awaited[: MAX_RECORDED if again else LOOK_AT]
        known = self.recorded is not None and self.recorded.issuperset(record) and self.recorded.issubset(awaited)
        return None if known and not look else _Statement(self, None if known else record, look)


@dataclass(eq=False)
class _Statement:
    """Statement about a parent that Redis is told.

    Attributes:
        record: the tasks that it awaits; None to leave the record as it is.
        look: those of them to look at.
    """

    parent: _Parent
    record: list[str] | None
    look: list[str]

    @property
    def cost(self) -> int:
        """The work of the server, in tasks to look at."""
        return 1 + len(self.look) + len(self.record or ()) // 20

    def row(self) -> scripts.WaitRow:
        delivery = self.parent.attempt.delivery
        record = scripts.KEEP_AWAITED if self.record is None else " ".join(self.record)
        return scripts.WaitRow(delivery.task_id, delivery.generation, record, " ".join(self.look))


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
        parent.waits[wait] = None
        if not attempt.lends:
            slots.lend(attempt)
        self._note(parent)
        over = False
        try:
            with wait.scope:
                yield
                over = True
        finally:
            del parent.waits[wait]
            # The end of one of many children changes nothing in Redis while the parent awaits the others.
            more = parent.ended(children[0]) if over and len(children) == 1 else True
            if more or not parent.waits:
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

    def _note(self, parent: _Parent) -> None:
        self._changed_parents[parent] = None
        self._changed.set()

    # ------------------------------------------------------------------------------------------------------ statements

    async def run(self) -> None:
        """Tell Redis what has changed, until cancelled."""
        pauses, repeat_at_s = Pauses(cap_s=REPEAT_S), 0.0
        while True:
            rests = not (self._parents or self._stated)
            with anyio.CancelScope(deadline=math.inf if rests else repeat_at_s):
                await self._changed.wait()
            again, now_s = 0, anyio.current_time()
            if rests:
                repeat_at_s = now_s + REPEAT_S
            elif now_s >= repeat_at_s:
                # Changes that never end put no repetition off.
                repeat_at_s = now_s + REPEAT_S
                # What a handler has left behind goes with its attempt.
                self._parents = {attempt: parent for attempt, parent in self._parents.items() if attempt.running}
                waiting = [parent for parent in self._parents.values() if parent.waits]
                self._changed_parents.update(dict.fromkeys(waiting))
                again = min(LOOK_AT, max(1, LOOK_AGAIN // max(1, len(waiting))))
            self._changed = anyio.Event()
            parents, self._changed_parents = self._changed_parents, {}
            try:
                await self._state(list(parents), again)
            except StoreError as failure:
                _log.debug("waits_not_recorded", error=str(failure))
                self._changed_parents = parents | self._changed_parents
                self._changed.set()
                await anyio.sleep(pauses.next_s())
            else:
                pauses.reset()

    async def _state(self, parents: Sequence[_Parent], again: int) -> None:
        left = [parent for parent in parents if parent.attempt.running]
        while True:
            told, cost = list[_Statement](), 0
            while left and cost < LOOK_AT:
                if (statement := left.pop().statement(again)) is not None:
                    told.append(statement)
                    cost += statement.cost
            await self._tell(told)
            if not left:
                return

    async def _tell(self, told: Sequence[_Statement]) -> None:
        counts = self._counts()
        if not told and {agent: text for agent, text in counts.items() if text} == self._stated:
            return
        call = scripts.lend(
            self._services.keys,
            worker=self._worker,
            rows=[statement.row() for statement in told],
            agents=[scripts.LentRow(agent, text) for agent, text in counts.items()],
        )
        for statement in told:
            # An end that is noticed meanwhile is taken from both.
            statement.parent.looked.update(statement.look)
            if statement.record is not None:
                statement.parent.recorded = set(statement.record)
        try:
            reply = await self._services.store.call(call)
        except StoreError:
            for statement in told:
                statement.parent.recorded = None
                statement.parent.looked.difference_update(statement.look)
            raise
        _log.debug("waits_recorded", count=len(told))
        self._stated = {agent: text for agent, text in counts.items() if text}
        for statement, recorded in zip(told, reply.recorded, strict=True):
            self._apply(statement, recorded)
        for agent, expected in zip(counts, reply.expects, strict=True):
            self._slots[agent].open_lent(expected=expected)

    def _counts(self) -> dict[str, str]:
        """Return the attempts that lend by agent and depth; '' for an agent whose attempts lend no more."""
        by_agent: dict[str, Counter[int]] = {agent: Counter() for agent in self._stated}
        for parent in self._parents.values():
            if parent.attempt.lends and parent.attempt.running:
                by_agent.setdefault(parent.attempt.delivery.agent, Counter())[parent.depth] += 1
        return {
            agent: " ".join(f"{depth}={number}" for depth, number in sorted(counter.items()))
            for agent, counter in by_agent.items()
        }

    def _apply(self, statement: _Statement, recorded: scripts.Recorded) -> None:
        parent = statement.parent
        if recorded.cycle:
            parent.recorded = None
            for wait in parent.waits:
                if recorded.cycle[0] in wait.children:
                    wait.cycle = recorded.cycle
                    wait.scope.cancel()
        if recorded.depth is None:
            return
        parent.looked.difference_update(statement.look[recorded.looked :])
        if statement.record is not None:
            parent.size = recorded.size
        elif parent.size != recorded.size:
            # The server has lost the record.
            parent.recorded = None
            self._note(parent)
        if recorded.depth != parent.depth:
            # What it awaits goes below it.
            parent.depth = recorded.depth
            parent.looked.clear()
            self._note(parent)
        elif recorded.looked < len(statement.look):
            self._note(parent)
