"""Removes workers without heartbeats and agents without workers from the registry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.agents import scripts as registry
from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger

if TYPE_CHECKING:
    from orchestrator.services import Services

LIMIT: Final = 100
_log = get_logger(__name__)


class RegistryCleanup:
    """Calls the script `agents/expire` once per sweep."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._alive_s = max(1, round(services.settings.worker.heartbeat_s * 4))

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await anyio.sleep(self._services.settings.supervisor.sweep_s)
            try:
                gone = await self._services.store.call(
                    registry.expire(self._services.keys, alive_s=self._alive_s, limit=LIMIT)
                )
            except StoreError as failure:
                _log.warning("expire_failed", error=str(failure))
                continue
            for worker in gone:
                _log.warning("worker_expired", worker=worker)
