"""A team in the tasks of one test: the kit's stage and crew, with workers that the test starts itself."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from orchestrator.testing.stage import Stage, open_stage, stage_settings
from workers.testing.crew import Crew, Place

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import anyio

    from orchestrator.client.client import Orchestrator
    from orchestrator.core.settings import Settings
    from workers.agent import Agent
    from workers.runtime.worker import Worker

TIMEOUT_S: Final = 4.0
"""Tests wait this long: less than a sweep (5 s), so that a lost wake-up fails them."""

_FAST: Final[dict[str, Any]] = {"retry.base_s": 0.02, "retry.cap_s": 0.05}


def local_settings(url: str, prefix: str, **changed: Any) -> Settings:
    """Settings with short times; `changed` by dotted name with `__` for the dot, as `queue__max_tasks=3`."""
    return stage_settings(url, prefix, _FAST | {name.replace("__", "."): value for name, value in changed.items()})


class LocalTeam:
    """What a test starts and asks."""

    def __init__(self, stage: Stage) -> None:
        self.services, self.settings, self.orc = stage.services, stage.settings, stage.orc
        self._stage, self._crew = stage, Crew(stage)
        self._places: list[Place] = []

    async def work(self, *agents: Agent, **changed: Any) -> Worker:
        """Start a worker that hosts `agents`, with changed settings if need be; comes back when it is registered."""
        place = await self._crew.hire(agents, settings=self._changed(changed))
        self._places.append(place)
        return place.worker

    async def lead(self) -> anyio.CancelScope:
        """Start a supervisor; cancel what comes back to stop it."""
        return await self._stage.lead()

    async def client(self, **changed: Any) -> Orchestrator:
        """Open another client, with changed settings if need be; it is closed with the team."""
        return await self._stage.client(self._changed(changed))

    def _changed(self, changed: dict[str, Any]) -> Settings:
        url = self.settings.redis.url
        assert url is not None
        return local_settings(url.get_secret_value(), self.settings.prefix, **changed) if changed else self.settings

    async def stop(self, worker: Worker) -> None:
        """Drain one worker and wait for its end."""
        for place in self._places:
            if place.worker is worker:
                place.stop()
                await place.ended.wait()

    async def stop_workers(self) -> None:
        """Stop all workers at once."""
        await self._crew.dismiss()


@asynccontextmanager
async def run_local_team(settings: Settings, *, led: bool = True) -> AsyncIterator[LocalTeam]:
    """Run a supervisor, unless `led` is False, and what the test adds; everything ends with the block."""
    async with open_stage(settings, led=led) as stage:
        team = LocalTeam(stage)
        try:
            yield team
        finally:
            await team.stop_workers()
