"""The workers of a team: each place is filled by one worker after another, as a host replaces those that die."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from orchestrator.core.ids import new_worker_id
from orchestrator.services import SyncStore
from orchestrator.testing.mortal import MortalStore, mortal_services
from workers.runtime.dead_worker import give_back
from workers.testing.crashes import Crash, CrashPlan, MortalWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyio.abc import TaskStatus

    from orchestrator.core.settings import Settings
    from orchestrator.testing.stage import Stage
    from workers.agent import Agent


class Place:
    """A place in a crew.

    Attributes:
        worker: who fills it.
        ended: set when nobody will any more.
    """

    def __init__(self, stage: Stage, agents: Sequence[Agent], *, settings: Settings, plan: CrashPlan) -> None:
        self.worker: MortalWorker
        self.ended = anyio.Event()
        self._stage, self._agents, self._settings, self._plan = stage, agents, settings, plan
        self._present = self._stopped = False

    @property
    def filled(self) -> bool:
        """Whether a worker that lives is registered, or nobody is wanted any more."""
        return self.ended.is_set() or (self._present and self.worker.crash is None)

    def stop(self, *, at_once: bool = False) -> None:
        """Drain the worker and leave the place empty."""
        self._stopped = True
        self.worker.stop()
        if at_once:
            self.worker.stop()

    async def fill(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run a worker, and another one whenever it crashes; told as started when the first is registered."""
        first = True
        try:
            while not self._stopped:
                name = new_worker_id()
                services, store = mortal_services(self._stage.services, self._settings, name=f"worker-{name}")
                arrived = partial(self._arrived, task_status if first else None)
                self._present = False
                self.worker = MortalWorker(
                    services, self._agents, worker=name, store=store, plan=self._plan, registered=arrived
                )
                first = False
                try:
                    await self.worker.run()
                finally:
                    await store.close()
                if self.worker.crash is None:
                    return
                await self._bury(self.worker.crash, store)
        finally:
            self.ended.set()

    def _arrived(self, task_status: TaskStatus[None] | None) -> None:
        # Also told when a worker registers anew.
        if not self._present and task_status is not None:
            task_status.started()
        self._present = True

    async def _bury(self, crash: Crash, store: MortalStore) -> None:
        """Do what a host does for a worker that it saw die."""
        await self._stage.wait_disconnected(store)
        await anyio.to_thread.run_sync(self._give_back, f"{crash} (planned by a test)")

    def _give_back(self, how: str) -> None:
        services = self._stage.services
        with closing(SyncStore(services.endpoint, services.keys, name="host")) as store:
            give_back(
                store,
                agents=self._agents,
                worker=self.worker.id,
                how=how,
                dead_ttl_s=self._settings.results.dead_ttl_s,
            )


class Crew:
    """The workers of one stage."""

    def __init__(self, stage: Stage) -> None:
        self.plan = CrashPlan()
        self._stage = stage
        self._places: list[Place] = []

    @property
    def complete(self) -> bool:
        """Whether no worker is missing that will come."""
        return all(place.filled for place in self._places)

    def awaited(self) -> set[str]:
        """The children that handlers wait for at the moment."""
        return {id_ for place in self._places if place.filled for id_ in place.worker.awaited}

    async def hire(self, agents: Sequence[Agent], *, settings: Settings | None = None) -> Place:
        """Fill one more place with a worker that hosts `agents`; comes back when it is registered.

        Raises:
            ConfigError: the registry refused an agent.
        """
        place = Place(self._stage, agents, settings=settings or self._stage.settings, plan=self.plan)
        await self._stage.start(place.fill)
        self._places.append(place)
        return place

    async def dismiss(self) -> None:
        """Stop everybody at once; what ran is given back."""
        with anyio.CancelScope(shield=True):
            for place in self._places:
                place.stop(at_once=True)
            for place in self._places:
                await place.ended.wait()
        self._places.clear()
