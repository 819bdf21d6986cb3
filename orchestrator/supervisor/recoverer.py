"""Requeues inbox entries that no worker will finish: of agents without live workers or with full ones.

Faster recovery happens elsewhere: a host abandons the entries of its dead worker, and workers adopt from each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.agents.queries import inbox_lengths
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger
from orchestrator.tasks import scripts

if TYPE_CHECKING:
    from orchestrator.core.turns import LoopTurn
    from orchestrator.core.wakeups import Wakeup
    from orchestrator.services import Services

LIMIT: Final = 200
CLEAN_EVERY: Final = 12
"""Sweeps between two searches for unknown consumers: about a minute."""
_log = get_logger(__name__)


class Recoverer:
    """Calls `recover` in every sweep for each agent whose inbox is not empty."""

    def __init__(self, services: Services, *, repair_requested: Wakeup) -> None:
        self._services, self._repair_requested = services, repair_requested
        self._heartbeat_ms = round(services.settings.worker.heartbeat_s * 1000)
        self._sweeps = 0

    async def run(self) -> None:
        """Recover until cancelled."""
        with self._services.watch_loop("recoverer", waits_s=sweep_s) as turn:
            while True:
                turn.record()
                try:
                    await self._recover_all(turn)
                except StoreError as failure:
                    _log.warning("recover_failed", error=str(failure))
                self._sweeps += 1
                await self._services.live.sleep(sweep_s)

    async def _recover_all(self, turn: LoopTurn) -> None:
        for agent, entries in (await inbox_lengths(self._services.store)).items():
            if entries or self._cleans():
                try:
                    await self._recover(agent, turn)
                except ServerRefused as refusal:
                    _log.error("recover_refused", agent=agent, error=str(refusal))
                    self._repair_requested.notify(agent)

    def _cleans(self) -> bool:
        return self._sweeps % CLEAN_EVERY == CLEAN_EVERY - 1

    async def _recover(self, agent: str, turn: LoopTurn) -> None:
        total, left = 0, True
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
                clean=self._cleans(),
            )
            requeued, left = await self._services.store.call(call)
            total += requeued
            left = left and requeued > 0
        if total:
            _log.warning("entries_recovered", agent=agent, count=total)
