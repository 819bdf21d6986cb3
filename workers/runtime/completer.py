"""Verdicts on their way to Redis: one `finish` call per batch; while one is under way the next batch grows.

Nothing is dropped: through an outage verdicts wait here, their entries stay held, and they are sent again with the
same generation until Redis has answered.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.tasks import scripts
from orchestrator.tasks.model import FinishStatus

if TYPE_CHECKING:
    from orchestrator.services import Services
    from orchestrator.tasks.model import Delivery, Verdict
    from workers.runtime.in_flight import InFlight

BATCH_ROWS: Final = 500
BATCH_BYTES: Final = 4 * 1024 * 1024
PAUSE_S: Final = 1.0

_log = get_logger(__name__)


class Completer:
    """Collects verdicts and stores them in batches."""

    def __init__(self, services: Services, in_flight: InFlight) -> None:
        self._services, self._in_flight = services, in_flight
        results = services.settings.results
        self._dead_ttl_s, self._max_wait_s = round(results.dead_ttl_s), round(services.settings.queue.max_wait_s)
        self._verdicts: deque[tuple[Delivery, Verdict]] = deque()
        self._rows = BATCH_ROWS
        self._wake = anyio.Event()

    def put(self, delivery: Delivery, verdict: Verdict) -> None:
        """Take a verdict; it will be stored."""
        self._verdicts.append((delivery, verdict))
        if len(self._verdicts) == 1:
            self._wake.set()

    async def run(self) -> None:
        """Store verdicts as they come, until cancelled."""
        while True:
            if not self._verdicts:
                self._wake = anyio.Event()
                await self._wake.wait()
                # One turn of the loop: handlers that end in the same turn share a call.
                await anyio.lowlevel.checkpoint()
            await self._store_batch()

    async def _store_batch(self) -> None:
        batch: list[tuple[Delivery, Verdict]] = []
        size = 0
        for delivery, verdict in self._verdicts:
            if len(batch) == self._rows or size >= BATCH_BYTES:
                break
            batch.append((delivery, verdict))
            size += len(verdict.payload)
        call = scripts.finish(self._services.keys, rows=batch, dead_ttl_s=self._dead_ttl_s, max_wait_s=self._max_wait_s)
        try:
            statuses = await self._services.store.call(call, retry_for_s=float("inf"))
        except StoreError as failure:
            _log.error("verdicts_not_stored", count=len(batch), error=str(failure))
            # One verdict that is refused must not hold up its neighbours: each is sent alone, a refused one goes last.
            if self._rows == 1:
                self._verdicts.rotate(-1)
            self._rows = 1
            await anyio.sleep(PAUSE_S)
            return
        self._rows = min(BATCH_ROWS, self._rows * 2)
        for (delivery, verdict), status in zip(batch, statuses, strict=True):
            self._verdicts.popleft()
            self._in_flight.drop(delivery)
            if status is FinishStatus.STALE:
                _log.warning(
                    "finish_rejected", task=delivery.task_id, agent=delivery.agent, attempt=delivery.attempt,
                    verdict=verdict.kind.value,
                )  # fmt: skip
