"""Runs the loops of the supervisor process, for one pool or several, and stops them on a signal.

The supervisor waits for Redis when it starts, as workers do, so that a service starts in any order. The service manager
gets READY when Redis has answered and knows the scripts, of several pools for the first one.
"""

from __future__ import annotations

import signal
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

import anyio

from orchestrator.core.errors import FormatMismatch, OrchestratorError, ServerUnavailable
from orchestrator.core.hangup import Terminal, hangup_received
from orchestrator.core.ids import new_worker_id
from orchestrator.core.live_settings import LiveSettings
from orchestrator.core.log import get_logger, share_level
from orchestrator.core.notify import WAITS_FOR_REDIS, Notifier
from orchestrator.core.process_one import reap_orphans
from orchestrator.core.settings_reload import SettingsReloader
from orchestrator.core.turns import LoopTurns
from orchestrator.core.wakeups import Wakeup
from orchestrator.monitoring.supervisor_health import SupervisorHealth
from orchestrator.schedules.scheduler import Scheduler
from orchestrator.services import WAIT_REPORTED_EVERY_S, PoolParts, configured_server, wait_for_services
from orchestrator.supervisor.assigner import Assigner
from orchestrator.supervisor.budget_keeper import BudgetKeeper
from orchestrator.supervisor.clock_watch import ClockWatch
from orchestrator.supervisor.controller import Controller
from orchestrator.supervisor.doorbell import Doorbell
from orchestrator.supervisor.event_trimmer import EventTrimmer
from orchestrator.supervisor.housekeeper import Housekeeper
from orchestrator.supervisor.jobs import Jobs
from orchestrator.supervisor.key_types import KeyTypes
from orchestrator.supervisor.leader import Leader
from orchestrator.supervisor.loops import keep_running
from orchestrator.supervisor.older_workers import OlderWorkers
from orchestrator.supervisor.payload_sweeper import PayloadSweeper
from orchestrator.supervisor.pool_runner import PoolRunner
from orchestrator.supervisor.promoter import Promoter
from orchestrator.supervisor.provider_keeper import ProviderKeeper
from orchestrator.supervisor.reconciler import Reconciler
from orchestrator.supervisor.recoverer import Recoverer
from orchestrator.supervisor.registration_check import RegistrationCheck
from orchestrator.supervisor.registry_cleanup import RegistryCleanup
from orchestrator.supervisor.service_state import StatusReporter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.core.settings_sources import SettingsSources
    from orchestrator.services import Services

_log = get_logger(__name__)


async def run_supervisor(settings: Settings, sources: SettingsSources | None = None, pools: Sequence[str] = ()) -> None:
    """Run until SIGTERM or SIGINT. SIGHUP reloads the settings.

    Args:
        settings: all settings.
        sources: where they come from; without them, SIGHUP is not handled.
        pools: that it serves; by default that of the settings.

    Raises:
        ConfigError: the server is too old or may evict keys, or the libraries for `supervisor.health` are missing.
        FormatMismatch: the pool does not admit this version, or no longer.
        StoreError: Redis refuses.
    """
    reap_orphans()
    live, notifier = LiveSettings(settings), Notifier.take()
    pools = pools or (settings.pool,)
    address = settings.supervisor.health
    health = None if address is None else SupervisorHealth(settings, address, pools)
    reloader = SettingsReloader(sources, live, notifier, program="supervisor") if sources is not None else None
    hangup = [signal.SIGHUP] if sources is not None else []
    failure: OrchestratorError | None = None
    try:
        # The receiver outlives all else, so that no signal of the whole run falls to the default handler.
        with (
            anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hangup) as received,
            hangup_received() if hangup else nullcontext(),
        ):
            async with anyio.create_task_group() as group:
                group.start_soon(_obey_signals, received, group.cancel_scope, reloader, notifier)
                if health is not None:
                    group.start_soon(health.serve)
                try:
                    await ServedPools(live, pools, notifier, health).run()
                except OrchestratorError as raised:
                    failure = raised  # the group would wrap it
                group.cancel_scope.cancel()
    finally:
        if hangup:
            # Threads that started meanwhile do not block the signal, and the loop has installed the default handler.
            signal.signal(signal.SIGHUP, lambda *_: None)
    if failure is not None:
        if not isinstance(failure, FormatMismatch):
            _log.error("supervisor_failed", error=str(failure))
        notifier.stopping(f"ended: {failure}")
        raise failure


class ServedPools:
    """The pools of one supervisor process.

    Args:
        live: the settings of the process.
        pools: their names.
        notifier: of the process.
        health: of the process, if it serves it.
    """

    def __init__(
        self, live: LiveSettings, pools: Sequence[str], notifier: Notifier, health: SupervisorHealth | None
    ) -> None:
        self._pools, self._notifier, self._health = pools, notifier, health
        self._supervisor, self._endpoint = new_worker_id(), configured_server(live.current)
        self._turns = LoopTurns()
        self._state = StatusReporter(notifier, self._turns)
        self._runner = PoolRunner(pools, self._serve, failed=self._report_failure)
        self._connected = anyio.Event()
        self._settings = {pool: live.of_pool(pool) for pool in pools}

    async def run(self) -> None:
        """Serve all pools until cancelled.

        Raises:
            OrchestratorError: no pool can be served.
        """
        failure: OrchestratorError | None = None
        with share_level(pools=len(self._pools)):
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch)
                try:
                    await self._runner.run()
                except OrchestratorError as raised:
                    failure = raised  # the group would wrap it
                group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _watch(self) -> None:
        await self._connected.wait()
        await self._state.watch()

    def _report_failure(self, pool: str, failure: str) -> None:
        self._state.does(f"fails: {failure}", pool=pool)
        if self._health is not None:
            self._health.failed(pool, failure)

    async def _serve(self, pool: str) -> None:
        live = self._settings[pool]

        def report(outage: ServerUnavailable) -> None:
            _log.warning("supervisor_waits_for_redis", error=str(outage))
            self._state.does(WAITS_FOR_REDIS, pool=pool)
            if not self._connected.is_set():
                self._notifier.extend_timeout(WAIT_REPORTED_EVERY_S * 3)

        async def check(services: Services) -> None:
            warnings = await services.store.check_server(
                allow_eviction=live.current.redis.allow_eviction, durability=live.current.queue.durability
            )
            for warning in warnings:
                _log.warning("server_setting_risky", problem=warning)

        shared = PoolParts(self._turns if len(self._pools) == 1 else self._turns.of_pool(pool), self._endpoint)
        async with wait_for_services(live, name="supervisor", report=report, check=check, shared=shared) as services:
            self._runner.connected(pool)
            if self._health is not None:
                self._health.connected(services, self._supervisor)
            self._state.connected(pool)
            self._connected.set()
            try:
                await supervise(services, supervisor=self._supervisor, on_state=partial(self._state.does, pool=pool))
            except FormatMismatch as refused:
                _log.error("program_shut_out", floor=services.store.floor.value, error=str(refused))
                raise


async def supervise(
    services: Services, *, supervisor: str | None = None, on_state: Callable[[str], None] = lambda _: None
) -> None:
    """Run the loops while this supervisor leads, until cancelled.

    Args:
        services: of the pool.
        supervisor: its id; a new one by default.
        on_state: called with what the supervisor does now, in words.

    Raises:
        FormatMismatch: the pool no longer admits this version.
    """
    supervisor = supervisor or new_worker_id()
    leader = Leader(services, supervisor=supervisor, on_state=on_state)

    async def work() -> None:
        assign_wakeup, promote_wakeup, schedule_wakeup, repair_requested = Wakeup(), Wakeup(), Wakeup(), Wakeup()
        assign_refused, agents_changed = Wakeup(), Wakeup()
        budgets_changed, providers_changed = Wakeup(), Wakeup()
        assigner = Assigner(services, assign_wakeup, repair_requested=assign_refused)
        doorbell = Doorbell(
            services,
            assigner=assign_wakeup,
            promoter=promote_wakeup,
            scheduler=schedule_wakeup,
            registrations=agents_changed,
            budgets=budgets_changed,
            providers=providers_changed,
            calls=assigner,
        )
        keys_lost = Wakeup()
        jobs = Jobs(services)
        loops: dict[str, Callable[[], Awaitable[None]]] = {
            "doorbell": doorbell.run,
            "sweep": doorbell.sweep,
            "assigner": assigner.run,
            "promoter": Promoter(services, promote_wakeup, repair_requested=repair_requested).run,
            "scheduler": Scheduler(services, schedule_wakeup, repair_requested=repair_requested).run,
            "registry_cleanup": RegistryCleanup(services).run,
            "registration_check": RegistrationCheck(services, agents_changed).run,
            "budget_keeper": BudgetKeeper(services, budgets_changed).run,
            "provider_keeper": ProviderKeeper(services, providers_changed).run,
            "event_trimmer": EventTrimmer(services).run,
            "older_workers": OlderWorkers(services).run,
            "recoverer": Recoverer(services, repair_requested=repair_requested).run,
            "key_types": KeyTypes(services, assign_refused, repair_requested=repair_requested).run,
            "reconciler": Reconciler(services, repair_requested, keys_lost=keys_lost).run,
            "housekeeper": Housekeeper(services, keys_lost).run,
            "payload_sweeper": PayloadSweeper(services).run,
            "clock_watch": ClockWatch(services).run,
            "jobs": jobs.run,
            "controller": Controller(services, jobs=jobs, on_signed=leader.give_up).run,
        }
        async with anyio.create_task_group() as group:
            for name, run in loops.items():
                group.start_soon(keep_running, name, run, name=f"supervisor {name}")

    await leader.run(work)


async def _obey_signals(
    received: AsyncIterator[signal.Signals],
    scope: anyio.CancelScope,
    reloader: SettingsReloader | None,
    notifier: Notifier,
) -> None:
    terminal = Terminal()
    async for number in received:
        if reloader is not None and terminal.asks_reload(number):
            reloader.reload()
            continue
        _log.info("supervisor_stop_requested", signal=signal.Signals(number).name)
        notifier.stopping(f"stops on {signal.Signals(number).name}")
        scope.cancel()
