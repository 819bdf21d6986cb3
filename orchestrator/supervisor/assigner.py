"""Assigns ready tasks to the inboxes of agents, when queues or free slots change."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.agents import scripts as registry
from orchestrator.agents.queries import agent_names, agents_of_skill
from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger
from orchestrator.core.queue_name import QueueName
from orchestrator.core.wakeups import EVERYTHING, REGISTRY, changed_queue
from orchestrator.tasks.assigning import AGENTS_AT_ONCE, assign_to, dispatch_from
from orchestrator.tasks.queries import any_ready, ready_queues

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from orchestrator.core.turns import LoopTurn
    from orchestrator.core.wakeups import Wakeup
    from orchestrator.services import Services
    from orchestrator.tasks.model import Assigned, Dispatched

AGAIN_S: Final = 1.0
"""Retry delay after a refusal of Redis; the repair of damaged data runs meanwhile."""
RELIST_BATCH: Final = 500
_log = get_logger(__name__)


class Assigner:
    """Calls `dispatch` for changed skills, `assign` for changed agents, and again when a rate limit reopens."""

    def __init__(self, services: Services, wakeup: Wakeup, *, repair_requested: Wakeup) -> None:
        self._services, self._wakeup, self._repair_requested = services, wakeup, repair_requested
        self._pauses = Pauses()
        self._opens_s: dict[QueueName, float] = {}
        self._refused: set[QueueName] = set()

    async def run(self) -> None:
        """Assign until cancelled."""
        # The sweep wakes it, so that it waits no longer than that.
        with self._services.watch_loop("assigner", waits_s=sweep_s) as turn:
            while True:
                changed = await self._wakeup.wait(self._until_next_s())
                turn.record()
                try:
                    await self._assign_all(await self._touched(changed, turn), turn)
                    self._pauses.reset()
                except StoreError as failure:
                    _log.failure("assign_failed", error=failure)
                    turn.record()
                    await anyio.sleep(self._pauses.next_s(failure))
                    self._wakeup.notify(EVERYTHING, REGISTRY)

    @property
    def batch(self) -> int:
        """The most tasks that one call assigns."""
        return self._services.settings.supervisor.batch

    def _until_next_s(self) -> float | None:
        return max(0.0, min(self._opens_s.values()) - time.monotonic()) if self._opens_s else None

    async def _touched(self, changed: set[str], turn: LoopTurn) -> Collection[QueueName]:
        now_s = time.monotonic()
        touched = dict.fromkeys(queue for queue, at_s in self._opens_s.items() if at_s <= now_s)
        # A sweep over empty queues costs one call for any number of agents.
        if REGISTRY in changed or (EVERYTHING in changed and await any_ready(self._services.store)):
            touched |= dict.fromkeys(await self._everything(turn))
        for change in sorted(changed - {EVERYTHING, REGISTRY}):
            touched[changed_queue(change)] = None
        return touched

    async def _everything(self, turn: LoopTurn) -> list[QueueName]:
        """List all agents in the index of room, and return all queues that hold tasks."""
        store = self._services.store
        names = await agent_names(store)
        to_assign: list[str] = []
        for first in range(0, len(names), RELIST_BATCH):
            turn.record()
            batch = names[first : first + RELIST_BATCH]
            try:
                found = await store.call(registry.relist(store.keys, agents=batch))
            except ServerRefused:
                # `assign` finds and reports the agent with damaged data.
                found = batch
            to_assign += found
        return [QueueName.of_agent(agent) for agent in to_assign] + await ready_queues(store)

    async def _assign_all(self, queues: Collection[QueueName], turn: LoopTurn) -> None:
        # In rounds, so that a long queue of one agent does not delay the others.
        agents = [queue.name for queue in queues if queue.skill is None]
        without = {queue: 0 for queue in queues if queue.skill is not None}
        while agents or without:
            left: list[str] = []
            for group in self._groups(agents):
                turn.record()
                left += await self._assign_to(group, turn)
            agents = left
            for queue, passed in list(without.items()):
                turn.record()
                del without[queue]
                try:
                    done = await dispatch_from(self._services.store, queue.name, limit=self.batch, without=passed)
                except ServerRefused as refusal:
                    self._note_refusal(queue, refusal)
                    agents += await agents_of_skill(self._services.store, queue.name)
                    continue
                self.record([queue], done)
                if done.left:
                    without[queue] = done.without

    def _groups(self, agents: Iterable[str]) -> Iterator[Sequence[str]]:
        """Divide agents into those of one call each; those whose last call was refused are called for alone."""
        alone = {queue.name for queue in self._refused if queue.skill is None}
        several: list[str] = []
        for agent in dict.fromkeys(agents):
            if agent in alone:
                yield [agent]
            else:
                several.append(agent)
        for first in range(0, len(several), AGENTS_AT_ONCE):
            yield several[first : first + AGENTS_AT_ONCE]

    async def _assign_to(self, agents: Sequence[str], turn: LoopTurn) -> list[str]:
        """Assign to agents, one by one if Redis refuses them together; return those that can get more."""
        try:
            done = await assign_to(self._services.store, agents, limit=self.batch)
        except ServerRefused as refusal:
            if len(agents) == 1:
                self._note_refusal(QueueName.of_agent(agents[0]), refusal)
                return []
            left: list[str] = []
            for agent in agents:
                turn.record()
                left += await self._assign_to([agent], turn)
            return left
        self.record([QueueName.of_agent(agent) for agent in agents], done)
        return list(done.left)

    def record(self, queues: Collection[QueueName], done: Assigned | Dispatched) -> bool:
        """Record when the limits that hold tasks back open; return whether any does.

        Args:
            queues: of the call.
            done: what it did.
        """
        if done.count:
            _log.debug("tasks_assigned", count=done.count, queues=[str(queue) for queue in queues])
        for queue in queues:
            self._refused.discard(queue)
            self._opens_s.pop(queue, None)
        for agent, wait_us in done.waits_us.items():
            queue = QueueName.of_agent(agent)
            if wait_us:
                self._opens_s[queue] = time.monotonic() + wait_us / 1e6
            else:
                self._opens_s.pop(queue, None)
        return any(done.waits_us.values())

    def _note_refusal(self, queue: QueueName, refusal: ServerRefused) -> None:
        """Request a repair, and call again in a while; damaged data of one agent delays no other meanwhile."""
        if queue not in self._refused:
            _log.error("assign_refused", queue=str(queue), error=str(refusal))
        self._refused.add(queue)
        self._opens_s[queue] = time.monotonic() + AGAIN_S
        self._repair_requested.notify(str(queue))
