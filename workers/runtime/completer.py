"""Stores verdicts in Redis, one `finish` call per batch.

Nothing is dropped: in an outage verdicts wait here and their attempts stay in flight. They are sent again with the same
generation until Redis answers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio
from msgspec.structs import replace

from orchestrator.core.errors import ServerRefused, StoreError
from orchestrator.core.formats import Feature
from orchestrator.core.group_commit import GroupCommit
from orchestrator.core.log import get_logger
from orchestrator.tasks import scripts
from orchestrator.tasks.model import FinishStatus, VerdictKind
from orchestrator.tasks.values import ROW_BYTES, LargeValue, call_bytes, reference_to, result_field, write_commands
from orchestrator.workers.runtime.attempt import StopCause

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from orchestrator.services import Services
    from orchestrator.tasks.model import Delivery, Verdict
    from orchestrator.tasks.scripts import Finished
    from orchestrator.workers.runtime.in_flight import InFlight
    from orchestrator.workers.runtime.task_log import TaskLog
    from orchestrator.workers.runtime.timings import AttemptTimings

PAUSE_S: Final = 1.0
_SUCCEEDED: Final = VerdictKind.SUCCEEDED
_STALE: Final = FinishStatus.STALE
"""What each verdict is compared with. A look-up of a member of an enum takes 0.1 µs on Python 3.11."""
USUAL_LISTPACK_BYTES: Final = 64
"""Default of Redis for `hash-max-listpack-value`: with a longer value, a record is a hash table."""
OUR_LISTPACK_BYTES: Final = 1024
"""The same in the shipped redis.conf."""
_WITHOUT_TIMES: Final = frozenset({VerdictKind.SUCCEEDED, VerdictKind.RELEASED, VerdictKind.AWAIT_LOCK})
"""Verdicts of attempts whose begin is not stored: it did not happen, or would cost every task."""
_TIME_LIMITS: Final = frozenset({StopCause.TIMEOUT, StopCause.SILENCE})

_log = get_logger(__name__)


class Completer:
    """Collects verdicts and stores them in batches."""

    def __init__(
        self, services: Services, in_flight: InFlight, timings: AttemptTimings, task_log: TaskLog, *, worker: str
    ) -> None:
        self._services, self._in_flight, self._timings, self._worker = services, in_flight, timings, worker
        self._task_log = task_log
        self._hash_tables: bool | None = None
        self._commits: GroupCommit[tuple[Delivery, Verdict], FinishStatus | None] = GroupCommit(
            "worker", self._store, size=self._call_bytes
        )
        self.run = self._commits.run

    def put(self, delivery: Delivery, verdict: Verdict) -> None:
        """Queue a verdict; it is sent until Redis has answered."""
        self._commits.put((delivery, verdict))

    def _call_bytes(self, row: tuple[Delivery, Verdict]) -> int:
        size = len(row[1].payload)
        return call_bytes(size) if size > ROW_BYTES and self._is_apart(row[1]) else size

    def _is_apart(self, verdict: Verdict) -> bool:
        """Return whether a large result is written into a field of its own."""
        return verdict.kind is VerdictKind.SUCCEEDED and self._services.store.floor.admits(Feature.VALUES_APART)

    async def _finish(self, rows: Sequence[tuple[Delivery, Verdict]]) -> Finished:
        values: dict[int, LargeValue] = {}
        split = list(rows)
        for place, (delivery, verdict) in enumerate(rows):
            if len(verdict.payload) > ROW_BYTES and self._is_apart(verdict):
                value = LargeValue(delivery.task_id, result_field(delivery.generation), verdict.payload)
                values[place] = value
                split[place] = delivery, replace(verdict, payload=reference_to(value), apart=True)
        finished = await self._send(split, values.values())
        if lost := [place for place, status in enumerate(finished.statuses) if status is FinishStatus.LOST]:
            # Redis did not take the values, for example because it is full. Scripts may write them.
            again = await self._send([rows[place] for place in lost])
            for at, place in enumerate(lost):
                finished.statuses[place] = again.statuses[at]
                if at in again.ready_ms:
                    finished.ready_ms[place] = again.ready_ms[at]
        return finished

    async def _send(self, rows: Sequence[tuple[Delivery, Verdict]], values: Collection[LargeValue] = ()) -> Finished:
        keys, settings = self._services.keys, self._services.settings
        call = scripts.finish(
            keys,
            rows=rows,
            worker=self._worker,
            dead_ttl_s=round(settings.results.dead_ttl_s),
            max_wait_s=round(settings.queue.max_wait_s),
            listpack_bytes=USUAL_LISTPACK_BYTES if await self._find_hash_tables(rows) else None,
        )
        if not values:
            return await self._services.store.call(call, retry_for_s=float("inf"))
        return await self._services.store.call_behind(write_commands(keys, values), call, retry_for_s=float("inf"))

    async def _find_hash_tables(self, rows: Sequence[tuple[Delivery, Verdict]]) -> bool:
        """Return whether the server makes hash tables of usual records; asks once, about the first one that may be."""
        if self._hash_tables is None:
            for delivery, verdict in rows:
                if verdict.envelope and USUAL_LISTPACK_BYTES < len(delivery.envelope) <= OUR_LISTPACK_BYTES:
                    key = self._services.keys.task(delivery.task_id)
                    try:
                        encoding = await self._services.store.execute("OBJECT", "ENCODING", key)
                    except ServerRefused:
                        encoding = b"unknown"
                    except StoreError:
                        # The verdicts wait for Redis in their own call.
                        encoding = None
                    if encoding is not None:
                        self._hash_tables = encoding == b"hashtable"
                    break
        return bool(self._hash_tables)

    async def _store(self, batch: Sequence[tuple[Delivery, Verdict]]) -> Sequence[FinishStatus | None]:
        rows = [(delivery, self._timed(delivery, verdict)) for delivery, verdict in batch]
        try:
            finished = await self._finish(rows)
        except StoreError as failure:
            _log.error("finish_failed", count=len(batch), error=str(failure))
            await anyio.sleep(PAUSE_S)
            if len(batch) == 1:
                self.put(*batch[0])
                return [None]
            # Redis may refuse only one of them. Sending each alone stores the others.
            return [status for row in batch for status in await self._store([row])]
        tells_all = self._task_log.tells_all
        self._task_log.verdicts_stored(len(batch))
        for place, ((delivery, verdict), status) in enumerate(zip(batch, finished.statuses, strict=True)):
            if (attempt := self._in_flight.drop(delivery)) is not None:
                ended = VerdictKind.DEAD if place in finished.dead else verdict.kind
                kind = None if status is _STALE else ended
                waited_ms = self._timings.record(attempt, kind, ready_ms=finished.ready_ms.get(place))
                if attempt.trace is not None and waited_ms is not None:
                    attempt.trace.record_wait(waited_ms)
                if kind is not None and (tells_all or kind is not _SUCCEEDED):
                    self._task_log.ended(attempt, kind, verdict)
            if status is _STALE:
                _log.warning(
                    "finish_rejected", task=delivery.task_id, agent=delivery.agent, attempt=delivery.attempt,
                    verdict=verdict.kind.value,
                )  # fmt: skip
        return finished.statuses

    def _timed(self, delivery: Delivery, verdict: Verdict) -> Verdict:
        """Add to the verdict when the attempt began, and whether a time limit stopped it."""
        # Most attempts succeed.
        if verdict.kind is _SUCCEEDED or verdict.kind in _WITHOUT_TIMES:
            return verdict
        attempt = self._in_flight.get(delivery.agent, delivery.entry)
        if attempt is None or not attempt.started_s:
            return verdict
        ago_ms = round((time.monotonic() - attempt.started_s) * 1000)
        return replace(verdict, began_ago_ms=ago_ms, timed_out=attempt.stop_cause in _TIME_LIMITS)
