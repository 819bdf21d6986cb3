"""Makes scheduled tasks ready when they are due, and sleeps until the next due time.

Also goes on with cancels of tasks below cancelled ones whose client has died.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger
from orchestrator.core.wakeups import EVERYTHING
from orchestrator.tasks import scripts

if TYPE_CHECKING:
    from orchestrator.core.turns import LoopTurn
    from orchestrator.core.wakeups import Wakeup
    from orchestrator.services import Services

LIMIT: Final = 500
_log = get_logger(__name__)


class Promoter:
    """Calls `promote` when a task is due."""

    def __init__(self, services: Services, wakeup: Wakeup, *, repair_requested: Wakeup) -> None:
        self._services, self._wakeup, self._repair_requested = services, wakeup, repair_requested
        self._pauses = Pauses()
        self._wait_s: float | None = 0.0

    async def run(self) -> None:
        """Promote until cancelled."""
        # The sweep wakes it, so that it waits no longer than that.
        with self._services.watch_loop("promoter", waits_s=sweep_s) as turn:
            while True:
                await self._wakeup.wait(self._wait_s)
                try:
                    await self._promote(turn)
                    self._pauses.reset()
                except StoreError as failure:
                    _log.failure("promote_failed", error=failure)
                    if isinstance(failure, ServerRefused):
                        self._repair_requested.notify("scheduled")
                    turn.record()
                    await anyio.sleep(self._pauses.next_s(failure))
                    self._wakeup.notify(EVERYTHING)

    async def _promote(self, turn: LoopTurn) -> None:
        while True:
            turn.record()
            done = await self._services.store.call(scripts.promote(self._services.keys, limit=LIMIT))
            if done.promoted or done.expired:
                _log.debug("tasks_promoted", count=done.promoted, expired=done.expired)
            self._wait_s = done.wait_s
            if done.cancels:
                await self._services.store.call(scripts.cancel_children(self._services.keys))
            elif not done.left:
                break
