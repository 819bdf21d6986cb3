"""Removes workers without heartbeats, agents without workers and old versions of skills from the registry.

It also returns a task to its queue when no worker has the version of the skill that the task waits for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.agents import scripts as registry
from orchestrator.control import scripts
from orchestrator.core.errors import StoreError
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_text

if TYPE_CHECKING:
    from orchestrator.core.turns import LoopTurn
    from orchestrator.services import Services

LIMIT: Final = 100
RELEASE_BATCH: Final = 500
_log = get_logger(__name__)


class RegistryCleanup:
    """Calls the scripts `agents/expire` and `control/release` once per sweep."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._alive_s = max(1, round(services.settings.worker.heartbeat_s * 4))

    async def run(self) -> None:
        """Sweep until cancelled."""
        with self._services.watch_loop("registry_cleanup", waits_s=sweep_s) as turn:
            while True:
                await self._services.live.sleep(sweep_s)
                turn.record()
                try:
                    await self._sweep(turn)
                except StoreError as failure:
                    _log.failure("expire_failed", error=failure)

    async def _sweep(self, turn: LoopTurn) -> None:
        for worker in await self._services.store.call(
            registry.expire(self._services.keys, alive_s=self._alive_s, limit=LIMIT)
        ):
            _log.warning("worker_expired", worker=worker)
        await self._release(turn)
        _log.debug("registry_checked")

    async def _release(self, turn: LoopTurn) -> None:
        """Return tasks to their queues if no known version takes their arguments; a worker makes them dead letters."""
        store, keys = self._services.store, self._services.keys
        for name in await store.execute("ZRANGE", keys.version_scopes, 0, LIMIT - 1):
            scope, left = read_text(name), True
            while left:
                turn.record()
                moved, left = await store.call(scripts.release(keys, scope=scope, slot="", limit=RELEASE_BATCH))
                if moved:
                    _log.info("suspended_tasks_released", scope=scope, count=moved)
