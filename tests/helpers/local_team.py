"""A team in the tasks of one test: a temporary pool and a worker pool, with workers that the test starts itself."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from orchestrator.testing.temporary_pool import TemporaryPool, open_temporary_pool, temporary_settings
from orchestrator.workers.testing.worker_pool import WorkerPool, WorkerSlot

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import anyio

    from orchestrator.client.client import Orchestrator
    from orchestrator.core.settings import Settings
    from orchestrator.workers.agent import Agent
    from orchestrator.workers.runtime.worker import Worker

TIMEOUT_S: Final = 4.0
"""Tests wait this long: less than a sweep (5 s), so that a lost wake-up fails them."""

_FAST: Final[dict[str, Any]] = {"retry.base_s": 0.02, "retry.cap_s": 0.05}


def local_settings(url: str, prefix: str, **changed: Any) -> Settings:
    """Settings with short times; `changed` by dotted name with `__` for the dot, as `queue__max_tasks=3`."""
    return temporary_settings(url, prefix, _FAST | {name.replace("__", "."): value for name, value in changed.items()})


class LocalTeam:
    """What a test starts and asks."""

    def __init__(self, pool: TemporaryPool) -> None:
        self.services, self.settings, self.orc = pool.services, pool.settings, pool.orc
        self._pool, self._worker_pool = pool, WorkerPool(pool)
        self._slots: list[WorkerSlot] = []

    async def work(self, *agents: Agent, **changed: Any) -> Worker:
        """Start a worker that hosts `agents`, with changed settings if need be; comes back when it is registered."""
        slot = await self._worker_pool.start_worker(agents, settings=self._changed(changed))
        self._slots.append(slot)
        return slot.worker

    async def start_supervisor(self) -> anyio.CancelScope:
        """Start a supervisor; cancel what comes back to stop it."""
        return await self._pool.start_supervisor()

    async def client(self, **changed: Any) -> Orchestrator:
        """Open another client, with changed settings if need be; it is closed with the team."""
        return await self._pool.client(self._changed(changed))

    def _changed(self, changed: dict[str, Any]) -> Settings:
        url = self.settings.redis.url
        assert url is not None
        return local_settings(url.get_secret_value(), self.settings.prefix, **changed) if changed else self.settings

    async def stop(self, worker: Worker) -> None:
        """Drain one worker and wait for its end."""
        for slot in self._slots:
            if slot.worker is worker:
                slot.stop()
                await slot.ended.wait()

    async def stop_workers(self) -> None:
        """Stop all workers at once."""
        await self._worker_pool.stop_all()


@asynccontextmanager
async def run_local_team(settings: Settings, *, supervised: bool = True) -> AsyncIterator[LocalTeam]:
    """Run a supervisor, unless `supervised` is False, and what the test adds; everything ends with the block."""
    async with open_temporary_pool(settings, supervised=supervised) as pool:
        team = LocalTeam(pool)
        try:
            yield team
        finally:
            await team.stop_workers()
