"""Notices that Redis has lost tasks which it had accepted from this client."""

from __future__ import annotations

import secrets
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.errors import ServerUnavailable, StoreError
from orchestrator.core.ids import task_ms
from orchestrator.core.log import get_logger
from orchestrator.tasks import scripts
from orchestrator.tasks.losses import CLIENT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.services import Services

MOST: Final = 2000
"""Accepted tasks that a client remembers, and so the most that it can report as lost."""
YOUNG_S: Final = 240.0
"""An older task may have ended, and its record may have expired: records stay for at least 300 s."""
CHUNK: Final = 500
NAMED: Final = 10
"""Lost tasks that the log names."""
_log = get_logger(__name__)


class LossWatch:
    """Looks for the last accepted tasks when the client has connected again. Sends nothing while it stays connected."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._accepted: deque[str] = deque(maxlen=MOST)
        self._before: list[str] = []
        self._connected = anyio.Event()
        self.note_all = self._accepted.extend

    def connected(self) -> None:
        """Look soon for the tasks that earlier connections have accepted."""
        if self._accepted:
            # What is accepted from now on is at the new server.
            self._before += self._accepted
            self._accepted.clear()
            self._connected.set()

    async def run(self) -> None:
        """Look after each reconnection until cancelled."""
        while True:
            await self._connected.wait()
            self._connected = anyio.Event()
            ids, self._before = self._before[-MOST:], []
            try:
                await self._look(ids)
            except ServerUnavailable:
                self._before = ids + self._before
                await anyio.sleep(1.0)
                self._connected.set()
            except StoreError as failure:
                _log.failure("loss_check_failed", error=failure)

    async def _look(self, ids: Sequence[str]) -> None:
        store, keys = self._services.store, self._services.keys
        retry_for_s = self._services.settings.redis.command_timeout_s
        young_s = min(YOUNG_S, self._services.settings.queue.max_wait_s / 2)
        oldest_ms = (time.time() - young_s) * 1000
        young = [id_ for id_ in ids if task_ms(id_) >= oldest_ms]
        lost: list[str] = []
        for start in range(0, len(young), CHUNK):
            call = scripts.find_lost(keys, ids=young[start : start + CHUNK])
            missing = await store.call(call, retry_for_s=retry_for_s)
            lost += missing
        if not lost:
            return
        from_ms = min(map(task_ms, lost))
        report = scripts.report_lost(
            keys, report=secrets.token_urlsafe(9), observer=CLIENT, from_ms=from_ms, submits=len(lost)
        )
        await store.call(report, retry_for_s=retry_for_s)
        _log.error("writes_lost", submits=len(lost), since_ms=from_ms, task_ids=lost[:NAMED])
