"""Assigns ready tasks to the inboxes of agents whose queues or free slots changed."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.agents.queries import skills_by_agent
from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.wakeups import EVERYTHING, REGISTRY, changed_queue
from orchestrator.tasks import scripts
from orchestrator.tasks.queries import any_ready

if TYPE_CHECKING:
    from orchestrator.core.wakeups import Wakeup
    from orchestrator.services import Services

AGAIN_S: Final = 1.0
"""Retry delay after a refusal of Redis; the repair of damaged data runs meanwhile."""
_log = get_logger(__name__)


class Assigner:
    """Calls `assign` for changed agents, and again when a rate limit reopens."""

    def __init__(self, services: Services, wakeup: Wakeup, *, repair_requested: Wakeup) -> None:
        self._services, self._wakeup, self._repair_requested = services, wakeup, repair_requested
        self._pauses = Pauses()
        self._batch = services.settings.supervisor.batch
        self._agents: dict[str, set[str]] = {}
        self._opens_s: dict[str, float] = {}
        self._refused: set[str] = set()

    async def run(self) -> None:
        """Assign until cancelled."""
        while True:
            changed = await self._wakeup.wait(self._until_next_s())
            try:
                await self._assign_all(await self._touched(changed))
                self._pauses.reset()
            except StoreError as failure:
                _log.warning("assign_failed", error=str(failure))
                await anyio.sleep(self._pauses.next_s(failure))
                self._wakeup.notify(EVERYTHING, REGISTRY)

    def _until_next_s(self) -> float | None:
        return max(0.0, min(self._opens_s.values()) - time.monotonic()) if self._opens_s else None

    async def _touched(self, changed: set[str]) -> deque[str]:
        # A sweep over empty queues costs one call for any number of agents.
        if REGISTRY in changed or (EVERYTHING in changed and await any_ready(self._services.store)):
            self._agents = await skills_by_agent(self._services.store)
            self._opens_s = {agent: at_s for agent, at_s in self._opens_s.items() if agent in self._agents}
            return deque(self._agents)
        now_s = time.monotonic()
        touched = dict.fromkeys(agent for agent, at_s in self._opens_s.items() if at_s <= now_s)
        for change in sorted(changed):
            kind, name = changed_queue(change)
            if kind == "agent":
                touched[name] = None
            elif kind == "skill":
                touched.update(dict.fromkeys(agent for agent, skills in self._agents.items() if name in skills))
        return deque(touched)

    async def _assign_all(self, agents: deque[str]) -> None:
        # In rounds, so that a long queue of one agent does not delay the others.
        while agents:
            agent = agents.popleft()
            try:
                done = await self._services.store.call(
                    scripts.assign(self._services.keys, agent=agent, limit=self._batch)
                )
            except ServerRefused as refusal:
                # Damaged data of one agent must not delay the others.
                if agent not in self._refused:
                    _log.error("assign_refused", agent=agent, error=str(refusal))
                self._refused.add(agent)
                self._opens_s[agent] = time.monotonic() + AGAIN_S
                self._repair_requested.notify(agent)
                continue
            self._refused.discard(agent)
            if done.wait_us:
                self._opens_s[agent] = time.monotonic() + done.wait_us / 1e6
            else:
                self._opens_s.pop(agent, None)
            if done.left:
                agents.append(agent)
