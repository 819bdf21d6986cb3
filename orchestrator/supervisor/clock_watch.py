"""Logs steps of the wall clock of Redis, which leases, rate windows and due times follow."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import StoreError
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger
from orchestrator.tasks.queries import server_ms

if TYPE_CHECKING:
    from orchestrator.services import Services

STEP_S: Final = 1.0
_log = get_logger(__name__)


class ClockWatch:
    """Compares the clock of Redis with the monotonic clock of this process in every sweep."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._ahead_s: float | None = None

    async def run(self) -> None:
        """Watch until cancelled."""
        with self._services.watch_loop("clock_watch", waits_s=sweep_s) as turn:
            while True:
                turn.record()
                asked_s = time.monotonic()
                try:
                    server_s = await server_ms(self._services.store) / 1000
                except StoreError:
                    await self._services.live.sleep(sweep_s)
                    continue
                answered_s = time.monotonic()
                self._note(server_s - (asked_s + answered_s) / 2, within_s=(answered_s - asked_s) / 2)
                await self._services.live.sleep(sweep_s)

    def _note(self, ahead_s: float, *, within_s: float) -> None:
        before_s, self._ahead_s = self._ahead_s, ahead_s
        step_s = ahead_s - before_s if before_s is not None else 0.0
        # The time of the reading is only known to lie between request and answer.
        if abs(step_s) <= STEP_S + within_s:
            return
        _log.warning("server_clock_stepped", step_s=round(step_s, 1))
