"""Run a worker in this process; `orc worker run` is the usual way."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio

from orchestrator.core.event_loop import run_loop
from orchestrator.core.hangup import EarlyHangup
from orchestrator.core.settings_sources import SettingsSources
from orchestrator.monitoring.server import check_installed
from orchestrator.services import resolve_settings
from orchestrator.workers.runtime.host_health import HostHealth
from orchestrator.workers.runtime.host_memory import HostMemory
from orchestrator.workers.runtime.watchdog import LoopWatchdog
from orchestrator.workers.runtime.worker import run_worker

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.workers.agent import Agent


def run(*agents: Agent, settings: Settings | None = None) -> None:
    """Run a worker that hosts `agents` until SIGTERM or SIGINT. SIGHUP reloads settings from files and environment.

    It waits for Redis when it starts. The process exits if its event loop is stuck for `worker.stuck_after_s`, and
    after the drain even if handlers ignore their cancellation.

    Args:
        agents: the agents that it hosts.
        settings: all settings; by default from files and environment.

    Raises:
        ConfigError: a setting or an agent is invalid.
        StoreError: Redis refused the connection.
    """
    if settings is not None:
        _run(agents, resolve_settings(settings=settings), None, None)
        return
    early = EarlyHangup()
    try:
        sources = SettingsSources.of()
        _run(agents, sources.load().settings, sources, early)
    finally:
        early.restore()


def _run(
    agents: Sequence[Agent], settings: Settings, sources: SettingsSources | None, early: EarlyHangup | None
) -> None:
    memory = HostMemory(1)
    watchdog = LoopWatchdog(settings.worker.stuck_after_s + settings.worker.heartbeat_s, memory.take())
    work = partial(run_worker, settings, agents, watchdog=watchdog, sources=sources, early=early)
    if settings.worker.health is None:
        run_loop(work)
    else:
        check_installed("worker.health")
        run_loop(
            _serve_beside, HostHealth(settings, settings.worker.health, {settings.pool: memory}, watched=False), work
        )


async def _serve_beside(health: HostHealth, work: Callable[[], Awaitable[None]]) -> None:
    failure: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(health.serve)
        try:
            await work()
        except Exception as raised:  # noqa: BLE001 - the group would wrap it
            failure = raised
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
