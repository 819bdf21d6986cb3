"""Runs the loops of the supervisor process and stops them on a signal."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import anyio

from orchestrator.core.errors import FormatMismatch
from orchestrator.core.ids import new_worker_id
from orchestrator.core.log import get_logger
from orchestrator.core.wakeups import Wakeup
from orchestrator.schedules.scheduler import Scheduler
from orchestrator.services import open_services
from orchestrator.supervisor.assigner import Assigner
from orchestrator.supervisor.clock_watch import ClockWatch
from orchestrator.supervisor.controller import Controller
from orchestrator.supervisor.doorbell import Doorbell
from orchestrator.supervisor.event_trimmer import EventTrimmer
from orchestrator.supervisor.jobs import Jobs
from orchestrator.supervisor.leader import Leader
from orchestrator.supervisor.older_workers import OlderWorkers
from orchestrator.supervisor.promoter import Promoter
from orchestrator.supervisor.reconciler import Reconciler
from orchestrator.supervisor.recoverer import Recoverer
from orchestrator.supervisor.registry_cleanup import RegistryCleanup

if TYPE_CHECKING:
    from orchestrator.core.settings import Settings
    from orchestrator.services import Services

_log = get_logger(__name__)


async def run_supervisor(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        ConfigError: the server is too old, or may evict keys.
        FormatMismatch: the pool does not admit this version, or no longer.
        StoreError: Redis does not answer.
    """
    async with open_services(settings, name="supervisor") as services:
        for warning in await services.store.check_server(allow_eviction=settings.redis.allow_eviction):
            _log.warning("server_setting_risky", warning=warning)
        refused: FormatMismatch | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(_stop_on_signal, group.cancel_scope)
            try:
                await supervise(services)
            except FormatMismatch as failure:
                refused = failure  # the group would wrap it
            group.cancel_scope.cancel()
        if refused is not None:
            _log.error("program_shut_out", floor=services.store.floor.value, error=str(refused))
            raise refused


async def supervise(services: Services) -> None:
    """Run the loops while this supervisor leads, until cancelled.

    Raises:
        FormatMismatch: the pool no longer admits this version.
    """
    supervisor = new_worker_id()
    leader = Leader(services, supervisor=supervisor)

    async def work() -> None:
        assign_wakeup, promote_wakeup, schedule_wakeup, repair_requested = Wakeup(), Wakeup(), Wakeup(), Wakeup()
        doorbell = Doorbell(services, assigner=assign_wakeup, promoter=promote_wakeup, scheduler=schedule_wakeup)
        jobs = Jobs(services)
        async with anyio.create_task_group() as loops:
            loops.start_soon(doorbell.run)
            loops.start_soon(doorbell.sweep)
            loops.start_soon(Assigner(services, assign_wakeup, repair_requested=repair_requested).run)
            loops.start_soon(Promoter(services, promote_wakeup, repair_requested=repair_requested).run)
            loops.start_soon(Scheduler(services, schedule_wakeup, repair_requested=repair_requested).run)
            loops.start_soon(RegistryCleanup(services).run)
            loops.start_soon(EventTrimmer(services).run)
            loops.start_soon(OlderWorkers(services).run)
            loops.start_soon(Recoverer(services, repair_requested=repair_requested).run)
            loops.start_soon(Reconciler(services, repair_requested).run)
            loops.start_soon(ClockWatch(services).run)
            loops.start_soon(jobs.run)
            loops.start_soon(Controller(services, jobs=jobs).run)

    await leader.run(work)


async def _stop_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        async for number in received:
            _log.info("supervisor_stop_requested", signal=signal.Signals(number).name)
            scope.cancel()
