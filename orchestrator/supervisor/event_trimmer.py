"""Keeps the stream of ended tasks at `results.max_events` tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.tasks import scripts
from orchestrator.tasks.ends import oldest_kept

if TYPE_CHECKING:
    from orchestrator.services import Services

IDLE_SWEEPS: Final = 12
"""Sweeps between two looks while no task ends, so that a pool at rest is left alone."""
_log = get_logger(__name__)
_FINAL = ("succeeded", "dead", "cancelled", "expired")


class EventTrimmer:
    """Removes the oldest ended tasks from the stream when half as many more than it keeps have ended.

    One entry of the stream has the tasks that ended in one call, so that only a reader can count them.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._keep = services.settings.results.max_events
        self._trimmed_at: int | None = None
        self._seen: int | None = None

    async def run(self) -> None:
        """Sweep until cancelled."""
        sweep_s, sweeps = self._services.settings.supervisor.sweep_s, IDLE_SWEEPS
        while True:
            await anyio.sleep(sweep_s * sweeps)
            try:
                sweeps = 1 if await self.sweep() else IDLE_SWEEPS
            except StoreError as failure:
                _log.warning("event_trim_failed", error=str(failure))

    async def sweep(self) -> bool:
        """Trim the stream, unless few tasks have ended since the last time.

        Returns whether any task has ended since the last call.

        Raises:
            StoreError: Redis does not answer, or refuses.
        """
        store, keys = self._services.store, self._services.keys
        counts = await store.execute("HMGET", keys.stats("TOTAL"), *_FINAL)
        ended = sum(int(count or 0) for count in counts)
        any_ended, self._seen = ended != self._seen, ended
        few = self._trimmed_at is not None and 0 <= ended - self._trimmed_at < self._keep / 2
        if few or ended <= self._keep:
            return any_ended
        if (oldest := await oldest_kept(store, self._keep)) is not None:
            await store.call(scripts.trim_events(keys, oldest=oldest))
        self._trimmed_at = ended
        return any_ended
