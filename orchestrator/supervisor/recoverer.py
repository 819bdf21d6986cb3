"""Requeues inbox entries that no worker will finish: of agents without live workers or with full ones.

Faster recovery happens elsewhere: a host abandons the entries of its dead worker, and workers adopt from each other.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING, Final

from orchestrator.agents.queries import agent_names
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger
from orchestrator.tasks import scripts
from orchestrator.tasks.death_log import log_dead
from orchestrator.tasks.inbox import find_filled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.turns import LoopTurn
    from orchestrator.core.wakeups import Wakeup
    from orchestrator.services import Services

LIMIT: Final = 200
CLEAN_EVERY: Final = 12
"""Sweeps between two searches for unknown consumers: about a minute."""
CLEANED_AT_ONCE: Final = 5
"""Fewest agents of such a search. Each of many agents has its turn about every three hours."""
CLEANED_SHARE: Final = 0.005
_log = get_logger(__name__)


class Recoverer:
    """Calls `recover` in every sweep for each agent whose inbox is not empty."""

    def __init__(self, services: Services, *, repair_requested: Wakeup) -> None:
        self._services, self._repair_requested = services, repair_requested
        self._heartbeat_ms = round(services.settings.worker.heartbeat_s * 1000)
        self._sweeps = 0
        self._filled: set[str] = set()
        """Agents whose inbox held entries after the last sweep."""
        self._to_clean: deque[str] = deque()

    async def run(self) -> None:
        """Recover until cancelled."""
        with self._services.watch_loop("recoverer", waits_s=sweep_s) as turn:
            while True:
                turn.record()
                try:
                    await self._recover_all(turn)
                except StoreError as failure:
                    _log.failure("recover_failed", error=failure)
                self._sweeps += 1
                await self._services.live.sleep(sweep_s)

    async def _recover_all(self, turn: LoopTurn) -> None:
        agents = await agent_names(self._services.store)
        # `recover` itself tells whether it left entries, so only the other inboxes are searched.
        inboxes = {self._services.keys.inbox(agent): agent for agent in agents if agent not in self._filled}
        found, _ = await find_filled(self._services.store, list(inboxes))
        filled, to_clean = {inboxes[key] for key in found} | self._filled, self._next_to_clean(agents)
        self._filled = set()
        for agent in agents:
            if agent in filled or agent in to_clean:
                try:
                    if await self._recover(agent, turn, clean=agent in to_clean):
                        self._filled.add(agent)
                except ServerRefused as refusal:
                    _log.error("recover_refused", agent=agent, error=str(refusal))
                    self._repair_requested.notify(agent)
        _log.debug("recover_finished", count=len(agents))

    def _next_to_clean(self, agents: Sequence[str]) -> set[str]:
        """Choose the agents whose unknown consumers are searched for in this sweep, all agents in turns."""
        if self._sweeps % CLEAN_EVERY != CLEAN_EVERY - 1:
            return set()
        chosen: set[str] = set()
        for _ in range(min(len(agents), max(CLEANED_AT_ONCE, math.ceil(len(agents) * CLEANED_SHARE)))):
            if not self._to_clean:
                self._to_clean.extend(agents)
            chosen.add(self._to_clean.popleft())
        return chosen

    async def _recover(self, agent: str, turn: LoopTurn, *, clean: bool) -> bool:
        """Recover entries of one agent, and return whether its inbox holds more."""
        total, left, filled = 0, True, False
        while left:
            turn.record()
            settings = self._services.settings
            call = scripts.recover(
                self._services.keys,
                agent=agent,
                limit=LIMIT,
                every_ms=round(settings.supervisor.sweep_s * 1000),
                heartbeat_ms=self._heartbeat_ms,
                dead_ttl_s=round(settings.results.dead_ttl_s),
                clean=clean,
            )
            done = await self._services.store.call(call)
            total += done.requeued
            log_dead(agent, done.dead)
            left, filled = done.left and done.requeued > 0, done.filled
        if total:
            _log.warning("entries_recovered", agent=agent, count=total)
        return filled
