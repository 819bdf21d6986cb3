"""Keeps the stream of ended tasks at `results.max_events` tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from orchestrator.core.errors import StoreError
from orchestrator.core.live_settings import sweep_s
from orchestrator.core.log import get_logger
from orchestrator.core.reading import read_whole
from orchestrator.tasks import scripts
from orchestrator.tasks.ends import oldest_kept

if TYPE_CHECKING:
    from orchestrator.core.settings import Settings
    from orchestrator.services import Services

IDLE_SWEEPS: Final = 12
"""Sweeps between two looks while no task ends, so that a pool at rest is left alone."""
_log = get_logger(__name__)
_FINAL = ("succeeded", "dead", "cancelled", "expired")


def idle_s(settings: Settings) -> float:
    """Return the time between two looks while no task ends."""
    return sweep_s(settings) * IDLE_SWEEPS


class EventTrimmer:
    """Removes the oldest ended tasks from the stream when half as many more than it keeps have ended.

    One entry of the stream has the tasks that ended in one call, so that only a reader can count them.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._trimmed_at: int | None = None
        self._seen: int | None = None

    async def run(self) -> None:
        """Sweep until cancelled."""
        idle = True
        with self._services.watch_loop("event_trimmer", waits_s=idle_s) as turn:
            while True:
                await self._services.live.sleep(idle_s if idle else sweep_s)
                turn.record()
                try:
                    idle = not await self.sweep()
                except StoreError as failure:
                    _log.failure("event_trim_failed", error=failure)

    async def sweep(self) -> bool:
        """Trim the stream, unless few tasks have ended since the last time.

        Returns whether any task has ended since the last call.

        Raises:
            StoreError: Redis does not answer, or refuses.
        """
        store, keys, keep = self._services.store, self._services.keys, self._services.settings.results.max_events
        counts = await store.execute("HMGET", keys.stats("TOTAL"), *_FINAL)
        ended = sum(read_whole(count) for count in counts)
        any_ended, self._seen = ended != self._seen, ended
        few = self._trimmed_at is not None and 0 <= ended - self._trimmed_at < keep / 2
        if few or ended <= keep:
            return any_ended
        if (oldest := await oldest_kept(store, keep)) is not None:
            await store.call(scripts.trim_events(keys, oldest=oldest))
            _log.debug("events_trimmed", entry=oldest)
        self._trimmed_at = ended
        return any_ended
