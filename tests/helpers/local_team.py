"""A team in the tasks of one test: supervisor, workers, clients, on a namespace of its own and with fast settings."""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.client.client import Orchestrator
from orchestrator.core.ids import new_worker_id
from orchestrator.core.settings import Settings
from orchestrator.services import Services, open_services
from orchestrator.supervisor.daemon import supervise
from tests.helpers.waiting import wait_for
from workers.runtime.worker import Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import TaskGroup

    from workers.agent import Agent

PATIENCE_S: Final = 4.0
"""Tests wait this long: less than a sweep (5 s), so that a lost wake-up fails them."""

_FAST: Final[dict[str, Any]] = {
    "worker.heartbeat_s": 0.1,
    "worker.drain_s": 1.0,
    "retry.base_s": 0.02,
    "retry.cap_s": 0.05,
    "supervisor.leader_lease_s": 1.0,
}


def local_settings(url: str, prefix: str, **changed: Any) -> Settings:
    """Settings with short times; `changed` by dotted name with `__` for the dot, as `queue__max_tasks=3`."""
    values = _FAST | {name.replace("__", "."): value for name, value in changed.items()}
    tree: dict[str, Any] = {"prefix": prefix, "redis": {"url": url}}
    for name, value in values.items():
        section, dot, setting = name.partition(".")
        if dot:
            tree.setdefault(section, {})[setting] = value
        else:
            tree[section] = value
    return Settings(**tree)


class LocalTeam:
    """What a test starts and asks."""

    def __init__(self, services: Services, group: TaskGroup, stack: AsyncExitStack, orc: Orchestrator) -> None:
        self.services, self.settings, self.orc = services, services.settings, orc
        self._group, self._stack = group, stack
        self._workers: list[tuple[Worker, anyio.Event]] = []

    async def work(self, *agents: Agent, **changed: Any) -> Worker:
        """Start a worker that hosts `agents`, with changed settings if need be; comes back when it is registered."""
        services = replace(self.services, settings=self._changed(changed))
        worker, ended = Worker(services, agents, worker=new_worker_id()), anyio.Event()

        async def run() -> None:
            try:
                await worker.run()
            finally:
                ended.set()

        self._group.start_soon(run)
        self._workers.append((worker, ended))
        keys, store = self.services.keys, self.services.store

        async def registered() -> bool:
            known = await store.pipeline([("HEXISTS", keys.agent_workers(agent.name), worker.id) for agent in agents])
            return all(known)

        await wait_for(registered, f"worker {worker.id} in the registry")
        return worker

    async def lead(self) -> anyio.CancelScope:
        """Start a supervisor; cancel what comes back to stop it."""
        scope = anyio.CancelScope()

        async def run() -> None:
            with scope:
                await supervise(self.services)

        self._group.start_soon(run)
        return scope

    async def client(self, **changed: Any) -> Orchestrator:
        """Open another client, with changed settings if need be; it is closed with the team."""
        return await self._stack.enter_async_context(Orchestrator(settings=self._changed(changed)))

    def _changed(self, changed: dict[str, Any]) -> Settings:
        url = self.settings.redis.url
        assert url is not None
        return local_settings(url.get_secret_value(), self.settings.prefix, **changed) if changed else self.settings

    async def stop(self, worker: Worker) -> None:
        """Drain one worker and wait for its end."""
        worker.stop()
        for known, ended in self._workers:
            if known is worker:
                await ended.wait()

    async def stop_workers(self) -> None:
        """Stop all workers at once."""
        for worker, _ in self._workers:
            worker.stop()
            worker.stop()
        for _, ended in self._workers:
            await ended.wait()


@asynccontextmanager
async def run_local_team(settings: Settings, *, led: bool = True) -> AsyncIterator[LocalTeam]:
    """Run a supervisor, unless `led` is False, and what the test adds; everything ends with the block."""
    async with open_services(settings, name="team") as services, AsyncExitStack() as stack:
        orc = await stack.enter_async_context(Orchestrator(settings=settings))
        async with anyio.create_task_group() as group:
            team = LocalTeam(services, group, stack, orc)
            if led:
                await team.lead()
            try:
                yield team
            finally:
                with anyio.CancelScope(shield=True):
                    await team.stop_workers()
                group.cancel_scope.cancel()
