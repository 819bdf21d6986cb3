"""Shared services of one worker process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from orchestrator.chat.accounts import ChatAccounts
from orchestrator.client.worker_client import WorkerClient
from orchestrator.workers.runtime.active_commands import WorkerCommands
from orchestrator.workers.runtime.attempt_traces import AttemptTraces
from orchestrator.workers.runtime.completer import Completer
from orchestrator.workers.runtime.emitter import Emitter
from orchestrator.workers.runtime.in_flight import InFlight
from orchestrator.workers.runtime.locking import Locking
from orchestrator.workers.runtime.process_starter import ProcessStarter
from orchestrator.workers.runtime.provider_calls import ProviderCalls
from orchestrator.workers.runtime.suspects import Suspects
from orchestrator.workers.runtime.task_log import TaskLog
from orchestrator.workers.runtime.timings import AttemptTimings
from orchestrator.workers.runtime.waiting import Waiting

if TYPE_CHECKING:
    from orchestrator.client.client import Orchestrator
    from orchestrator.services import Services
    from orchestrator.workers.runtime.process_groups import ProcessGroups


class ChildClient:
    """Opens the client that handlers submit child tasks with, at its first use."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._opening = anyio.Lock()
        self.opened: Orchestrator | None = None

    async def open(self) -> Orchestrator:
        """Return the open client."""
        if self.opened is None:
            async with self._opening:
                if self.opened is None:
                    self.opened = await self.make().open()
        return self.opened

    def make(self) -> WorkerClient:
        """Return a client that is not open."""
        return WorkerClient(self._services)

    def last_outage_s(self) -> float:
        """Return the monotonic time at which Redis last failed a call of this worker or of its client."""
        return self._services.store.last_outage_s

    async def close(self) -> None:
        """Close the client if it is open."""
        if self.opened is not None:
            await self.opened.aclose()


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """The shared parts of one worker.

    Attributes:
        worker: its id.
        timings: counts the attempts; the heartbeat sends the counts.
        client: submits child tasks.
        starter: starts the processes that run handlers.
    """

    worker: str
    services: Services
    in_flight: InFlight
    completer: Completer
    emitter: Emitter
    locking: Locking
    accounts: ChatAccounts
    commands: WorkerCommands
    suspects: Suspects
    timings: AttemptTimings
    client: ChildClient
    starter: ProcessStarter
    waiting: Waiting
    traces: AttemptTraces
    task_log: TaskLog
    providers: ProviderCalls


def make_parts(
    services: Services, *, worker: str, groups: ProcessGroups | None = None, workers: int = 1
) -> WorkerParts:
    """Return the services of a worker, without a call to Redis.

    Args:
        services: of its pool.
        worker: its id.
        groups: records the processes that run handlers; the host kills them when the worker is dead.
        workers: number of workers of its host, which share the processors.
    """
    in_flight, timings = InFlight(grace_s=lambda: services.settings.worker.grace_s), AttemptTimings()
    task_log = TaskLog()
    return WorkerParts(
        worker=worker,
        services=services,
        in_flight=in_flight,
        completer=Completer(services, in_flight, timings, task_log, worker=worker),
        emitter=Emitter(services),
        locking=Locking(services, worker=worker),
        accounts=ChatAccounts(services.store, services.live),
        commands=WorkerCommands(),
        suspects=Suspects(in_flight),
        timings=timings,
        client=ChildClient(services),
        starter=ProcessStarter(services.live, groups, workers=workers),
        waiting=Waiting(services, worker=worker),
        traces=AttemptTraces(pool=services.keys.pool, worker=worker, relation=services.settings.tracing.relation),
        task_log=task_log,
        providers=ProviderCalls(services, worker=worker),
    )
