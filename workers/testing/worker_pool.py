"""Runs the workers of a team, and replaces crashed workers as a host does."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from orchestrator.core.ids import new_worker_id
from orchestrator.services import SyncStore
from orchestrator.testing.killable_store import KillableStore, killable_services
from orchestrator.workers.runtime.dead_worker import abandon_entries
from orchestrator.workers.testing.crashes import Crash, CrashPlan, KillableWorker

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anyio.abc import TaskStatus

    from orchestrator.core.settings import Settings
    from orchestrator.testing.temporary_pool import TemporaryPool
    from orchestrator.workers.agent import Agent


class WorkerSlot:
    """One slot of a worker pool.

    Attributes:
        worker: the present worker.
        ended: set when the slot starts no further worker.
    """

    def __init__(self, pool: TemporaryPool, agents: Sequence[Agent], *, settings: Settings, plan: CrashPlan) -> None:
        self.worker: KillableWorker
        self.ended = anyio.Event()
        self._pool, self._agents, self._settings, self._plan = pool, agents, settings, plan
        self._registered = self._stopped = False

    @property
    def is_registered(self) -> bool:
        """True if a live worker is registered, or if the slot has ended."""
        return self.ended.is_set() or (self._registered and self.worker.crash is None)

    def stop(self, *, at_once: bool = False) -> None:
        """Drain the worker and end the slot."""
        self._stopped = True
        self.worker.stop()
        if at_once:
            self.worker.stop()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run a worker, and replace it whenever it crashes. Started once the first worker is registered."""
        first = True
        try:
            while not self._stopped:
                name = new_worker_id()
                services, store = killable_services(self._pool.services, self._settings, name=f"worker-{name}")
                on_registered = partial(self._mark_registered, task_status if first else None)
                self._registered = False
                self.worker = KillableWorker(
                    services, self._agents, worker=name, store=store, plan=self._plan, registered=on_registered
                )
                first = False
                try:
                    await self.worker.run()
                finally:
                    await store.close()
                if self.worker.crash is None:
                    return
                await self._abandon_tasks(self.worker.crash, store)
        finally:
            self.ended.set()

    def _mark_registered(self, task_status: TaskStatus[None] | None) -> None:
        # A worker calls this again when it registers again.
        if not self._registered and task_status is not None:
            task_status.started()
        self._registered = True

    async def _abandon_tasks(self, crash: Crash, store: KillableStore) -> None:
        """Requeue the tasks of a crashed worker, as its host does."""
        await self._pool.wait_disconnected(store)
        await anyio.to_thread.run_sync(self._give_back, f"{crash} (planned by a test)")

    def _give_back(self, how: str) -> None:
        services = self._pool.services
        with closing(SyncStore(services.endpoint, services.keys, name="host")) as store:
            abandon_entries(
                store,
                agents=self._agents,
                worker=self.worker.id,
                how=how,
                dead_ttl_s=self._settings.results.dead_ttl_s,
            )


class WorkerPool:
    """Runs the workers of one temporary pool."""

    def __init__(self, pool: TemporaryPool) -> None:
        self.plan = CrashPlan()
        self._pool = pool
        self._slots: list[WorkerSlot] = []

    @property
    def all_registered(self) -> bool:
        """True if every slot has a registered worker or has ended."""
        return all(slot.is_registered for slot in self._slots)

    def awaited(self) -> set[str]:
        """Return the ids of the children that handlers wait for."""
        return {id_ for slot in self._slots if slot.is_registered for id_ in slot.worker.awaited}

    async def start_worker(self, agents: Sequence[Agent], *, settings: Settings | None = None) -> WorkerSlot:
        """Add a slot with a worker that hosts `agents`, and return when the worker is registered.

        Raises:
            ConfigError: the registry refused an agent.
        """
        slot = WorkerSlot(self._pool, agents, settings=settings or self._pool.settings, plan=self.plan)
        await self._pool.start(slot.run)
        self._slots.append(slot)
        return slot

    async def stop_all(self) -> None:
        """Stop all workers at once; they release their running tasks."""
        with anyio.CancelScope(shield=True):
            for slot in self._slots:
                slot.stop(at_once=True)
            for slot in self._slots:
                await slot.ended.wait()
        self._slots.clear()
