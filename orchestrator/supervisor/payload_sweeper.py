"""Deletes what no task needs from the payload store, slowly: the leader walks it every ten minutes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.backoff import Pauses
from orchestrator.core.errors import PayloadError, StoreError
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger
from orchestrator.repair.payload_orphans import YOUNG_S, find_orphans
from orchestrator.supervisor.reconciler import POLL_EVERY_S, SCAN_EVERY_S

if TYPE_CHECKING:
    from orchestrator.core.settings import Settings
    from orchestrator.core.turns import LoopTurn
    from orchestrator.services import Services

SHARE: Final = 0.1
"""Largest share of its time that a sweep works; it rests after each step."""
_log = get_logger(__name__)


class PayloadSweeper:
    """Sweeps the payload store until cancelled; does nothing without one.

    Args:
        services: of the supervisor.
        young_s: age below which an object is kept in any case.
    """

    def __init__(self, services: Services, *, young_s: float = YOUNG_S) -> None:
        self._services, self._young_s = services, young_s

    async def run(self) -> None:
        """Sweep until cancelled."""
        if self._services.payloads.store is None:
            return
        pauses = Pauses()
        with self._services.watch_loop("payload_sweeper", waits_s=_longest_wait_s) as turn:
            await self._services.live.sleep(sweep_s)
            while True:
                turn.record()
                try:
                    await self.sweep(turn)
                    pauses.reset()
                except (PayloadError, StoreError) as failure:
                    _log.failure("payload_sweep_failed", error=failure)
                    await anyio.sleep(pauses.next_s())
                    continue
                swept_s = time.monotonic()
                while time.monotonic() - swept_s < SCAN_EVERY_S:
                    turn.record()
                    await anyio.sleep(POLL_EVERY_S)

    async def sweep(self, turn: LoopTurn | None = None) -> int:
        """Walk the whole store once; return the number of deleted objects.

        Raises:
            PayloadStoreUnavailable, StoreError: the payload store or Redis does not answer.
        """
        payloads, seen, deleted = self._services.payloads.store, 0, 0
        if payloads is None:
            return 0
        began_s = time.monotonic()
        async for count, orphans in find_orphans(payloads, self._services.store, young_s=self._young_s):
            if orphans:
                await payloads.delete([one.name for one in orphans])
            seen, deleted = seen + count, deleted + len(orphans)
            if turn is not None:
                turn.record()
                await anyio.sleep((time.monotonic() - began_s) * (1 - SHARE) / SHARE)
            began_s = time.monotonic()
        if deleted:
            _log.info("payloads_swept", deleted=deleted, objects=seen)
        return deleted


def _longest_wait_s(settings: Settings) -> float:
    return max(sweep_s(settings), POLL_EVERY_S, 60.0)
