"""Makes scheduled tasks ready when they are due, and sleeps until the next one is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.log import get_logger
from orchestrator.core.pauses import Pauses
from orchestrator.supervisor.doorbell import EVERYTHING
from orchestrator.tasks import scripts

if TYPE_CHECKING:
    from orchestrator.services import Services
    from orchestrator.supervisor.bell import Bell

LIMIT: Final = 500
_log = get_logger(__name__)


class Promoter:
    """Calls `promote` when something is due."""

    def __init__(self, services: Services, bell: Bell, *, trouble: Bell) -> None:
        self._services, self._bell, self._trouble = services, bell, trouble
        self._pauses = Pauses()
        self._wait_s: float | None = 0.0

    async def run(self) -> None:
        """Promote until cancelled."""
        while True:
            await self._bell.wait(self._wait_s)
            try:
                await self._promote()
                self._pauses.reset()
            except StoreError as failure:
                _log.warning("promote_interrupted", error=str(failure))
                if isinstance(failure, ServerRefused):
                    self._trouble.ring("scheduled")
                await anyio.sleep(self._pauses.next_s())
                self._bell.ring(EVERYTHING)

    async def _promote(self) -> None:
        while True:
            done = await self._services.store.call(scripts.promote(self._services.keys, limit=LIMIT))
            if not done.left:
                break
        self._wait_s = done.wait_s
