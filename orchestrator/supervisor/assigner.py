"""Assigns ready tasks to the inboxes of agents, when queues or free slots change."""

from __future__ import annotations

import time
from collections import deque
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
from orchestrator.tasks.assigning import assign_from
from orchestrator.tasks.model import Assigned
from orchestrator.tasks.queries import any_ready, ready_queues

if TYPE_CHECKING:
    from orchestrator.core.turns import LoopTurn
    from orchestrator.core.wakeups import Wakeup
    from orchestrator.services import Services
    from orchestrator.tasks.model import Dispatched

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
                    _log.warning("assign_failed", error=str(failure))
                    turn.record()
                    await anyio.sleep(self._pauses.next_s(failure))
                    self._wakeup.notify(EVERYTHING, REGISTRY)

    @property
    def batch(self) -> int:
        """The most tasks that one call assigns."""
        return self._services.settings.supervisor.batch

    def _until_next_s(self) -> float | None:
        return max(0.0, min(self._opens_s.values()) - time.monotonic()) if self._opens_s else None

    async def _touched(self, changed: set[str], turn: LoopTurn) -> deque[QueueName]:
        now_s = time.monotonic()
        touched = dict.fromkeys(queue for queue, at_s in self._opens_s.items() if at_s <= now_s)
        # A sweep over empty queues costs one call for any number of agents.
        if REGISTRY in changed or (EVERYTHING in changed and await any_ready(self._services.store)):
            touched |= dict.fromkeys(await self._everything(turn))
        for change in sorted(changed - {EVERYTHING, REGISTRY}):
            touched[changed_queue(change)] = None
        return deque(touched)

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

    async def _assign_all(self, queues: deque[QueueName], turn: LoopTurn) -> None:
        # In rounds, so that a long queue of one agent does not delay the others.
        without: dict[QueueName, int] = {}
        while queues:
            turn.record()
            queue = queues.popleft()
            try:
                done = await assign_from(self._services.store, queue, limit=self.batch, without=without.get(queue, 0))
            except ServerRefused as refusal:
                queues.extend(await self._isolate(queue, refusal))
                continue
            self.record(queue, done)
            if not isinstance(done, Assigned):
                without[queue] = done.without
            if done.left:
                queues.append(queue)

    def record(self, queue: QueueName, done: Assigned | Dispatched) -> bool:
        """Record when the limits that hold tasks back open; return whether any does."""
        self._refused.discard(queue)
        if isinstance(done, Assigned):
            self._note_opening(queue, done.wait_us)
            return done.wait_us > 0
        for agent, wait_us in done.waits_us.items():
            self._note_opening(QueueName.of_agent(agent), wait_us)
        self._opens_s.pop(queue, None)
        return any(done.waits_us.values())

    def _note_opening(self, queue: QueueName, wait_us: int) -> None:
        if wait_us:
            self._opens_s[queue] = time.monotonic() + wait_us / 1e6
        else:
            self._opens_s.pop(queue, None)

    async def _isolate(self, queue: QueueName, refusal: ServerRefused) -> list[QueueName]:
        """Request a repair; return the agents to assign for one by one, so that damaged data of one delays no other."""
        if queue not in self._refused:
            _log.error("assign_refused", queue=str(queue), error=str(refusal))
        self._refused.add(queue)
        self._opens_s[queue] = time.monotonic() + AGAIN_S
        self._repair_requested.notify(str(queue))
        if queue.agent is not None:
            return []
        return [QueueName.of_agent(agent) for agent in await agents_of_skill(self._services.store, queue.name)]
