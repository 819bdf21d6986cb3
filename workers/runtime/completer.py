"""Stores verdicts in Redis, one `finish` call per batch.

Nothing is dropped: in an outage verdicts wait here and their attempts stay in flight. They are sent again with the same
generation until Redis answers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio
from msgspec.structs import replace

from orchestrator.core.errors import StoreError
from orchestrator.core.group_commit import GroupCommit
from orchestrator.core.log import get_logger
from orchestrator.tasks import scripts
from orchestrator.tasks.model import FinishStatus, VerdictKind
from orchestrator.workers.runtime.attempt import StopCause

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.services import Services
    from orchestrator.tasks.model import Delivery, Verdict
    from orchestrator.workers.runtime.in_flight import InFlight
    from orchestrator.workers.runtime.timings import AttemptTimings

PAUSE_S: Final = 1.0
_WITHOUT_TIMES: Final = frozenset({VerdictKind.SUCCEEDED, VerdictKind.RELEASED, VerdictKind.AWAIT_LOCK})
"""Verdicts of attempts whose begin is not stored: it did not happen, or would cost every task."""
_TIME_LIMITS: Final = frozenset({StopCause.TIMEOUT, StopCause.SILENCE})

_log = get_logger(__name__)


class Completer:
    """Collects verdicts and stores them in batches."""

    def __init__(self, services: Services, in_flight: InFlight, timings: AttemptTimings, *, worker: str) -> None:
        self._services, self._in_flight, self._timings, self._worker = services, in_flight, timings, worker
        self._commits: GroupCommit[tuple[Delivery, Verdict], FinishStatus | None] = GroupCommit(
            "worker", self._store, size=lambda row: len(row[1].payload)
        )
        self.run = self._commits.run

    def put(self, delivery: Delivery, verdict: Verdict) -> None:
        """Queue a verdict; it is sent until Redis has answered."""
        self._commits.put((delivery, verdict))

    async def _store(self, batch: Sequence[tuple[Delivery, Verdict]]) -> Sequence[FinishStatus | None]:
        rows = [(delivery, self._timed(delivery, verdict)) for delivery, verdict in batch]
        settings = self._services.settings
        call = scripts.finish(
            self._services.keys,
            rows=rows,
            worker=self._worker,
            dead_ttl_s=round(settings.results.dead_ttl_s),
            max_wait_s=round(settings.queue.max_wait_s),
        )
        try:
            finished = await self._services.store.call(call, retry_for_s=float("inf"))
        except StoreError as failure:
            _log.error("finish_failed", count=len(batch), error=str(failure))
            await anyio.sleep(PAUSE_S)
            if len(batch) == 1:
                self.put(*batch[0])
                return [None]
            # Redis may refuse only one of them. Sending each alone stores the others.
            return [status for row in batch for status in await self._store([row])]
        for place, ((delivery, verdict), status) in enumerate(zip(batch, finished.statuses, strict=True)):
            attempt = self._in_flight.get(delivery.agent, delivery.entry)
            if attempt is not None and attempt.delivery.generation == delivery.generation:
                ended = VerdictKind.DEAD if place in finished.dead else verdict.kind
                kind = None if status is FinishStatus.STALE else ended
                waited_ms = self._timings.record(attempt, kind, ready_ms=finished.ready_ms.get(place))
                if attempt.trace is not None and waited_ms is not None:
                    attempt.trace.record_wait(waited_ms)
            self._in_flight.drop(delivery)
            if status is FinishStatus.STALE:
                _log.warning(
                    "finish_rejected", task=delivery.task_id, agent=delivery.agent, attempt=delivery.attempt,
                    verdict=verdict.kind.value,
                )  # fmt: skip
        return finished.statuses

    def _timed(self, delivery: Delivery, verdict: Verdict) -> Verdict:
        """Add to the verdict when the attempt began, and whether a time limit stopped it."""
        if verdict.kind in _WITHOUT_TIMES:
            return verdict
        attempt = self._in_flight.get(delivery.agent, delivery.entry)
        if attempt is None or not attempt.started_s:
            return verdict
        ago_ms = round((time.monotonic() - attempt.started_s) * 1000)
        return replace(verdict, began_ago_ms=ago_ms, timed_out=attempt.stop_cause in _TIME_LIMITS)
