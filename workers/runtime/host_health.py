"""Health and metrics of a worker host, and of a worker that runs without one.

A host has one thread and opens no connection, so a process that it forks serves. That process knows the host and its
workers by the memory that they share, and asks Redis nothing.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from orchestrator.monitoring.catalogue import BY_NAME
from orchestrator.monitoring.checks import Check
from orchestrator.monitoring.exposition import Page, pool_labels
from orchestrator.monitoring.loop_lag import READY_BELOW_S
from orchestrator.monitoring.process_metrics import ProcessCounts, add_lag, add_process, standard_metrics
from orchestrator.monitoring.server import serve_health

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.workers.runtime.host_memory import HostMemory, WorkerCell

TURN_EVERY_S: Final = 5.0
"""Interval at which the loop of the host turns at least while its health is served."""
HOST_SILENT_AFTER_S: Final = 30.0
KILL_MARGIN_S: Final = 30.0
"""Time in which the host must have killed a stuck worker."""


class HostHealth:
    """Answers for a host and its workers.

    Args:
        settings: all settings.
        address: at which it serves.
        memories: that host and workers write, by pool.
        watched: whether a host watches the workers; else the only worker answers itself.
    """

    def __init__(self, settings: Settings, address: str, memories: Mapping[str, HostMemory], *, watched: bool) -> None:
        self._address, self._memories, self._watched = address, memories, watched
        self._prefix = settings.prefix
        self._pid = os.getpid()
        self._stuck_after_s = settings.worker.stuck_after_s + settings.worker.heartbeat_s
        self._openings = {pool: dict[tuple[str, ...], str]() for pool in memories}

    async def serve(self) -> None:
        """Serve until cancelled."""
        await serve_health(self._address, self)

    def live(self) -> Sequence[Check]:
        """Check that the host turns, and that it has killed a worker that is stuck."""
        limit_s = self._stuck_after_s + KILL_MARGIN_S if self._watched else self._stuck_after_s
        return [*self._check_host(), Check("workers", self._stuck(limit_s))]

    def _check_host(self) -> list[Check]:
        if not self._watched:
            return []
        turned_s = min(memory.host.turned_s for memory in self._memories.values())
        silent_s = time.monotonic() - turned_s
        return [Check("host", f"has not turned for {silent_s:.0f} s" if silent_s > HOST_SILENT_AFTER_S else None)]

    def _stuck(self, limit_s: float) -> str | None:
        cells = (cell for memory in self._memories.values() for cell in memory.workers())
        longest_s = max((_silent_s(cell) for cell in cells), default=0.0)
        return f"an event loop has not turned for {longest_s:.0f} s" if longest_s > limit_s else None

    async def ready(self) -> Sequence[Check]:
        """Check that a worker of each pool takes tasks, reaches Redis, and is not late."""
        checks = [self._named(pool, check) for pool in self._memories for check in self._check_workers(pool)]
        return [*self.live(), *checks]

    def _check_workers(self, pool: str) -> list[Check]:
        memory = self._memories[pool]
        registered = [cell for cell in memory.workers() if cell.registered]
        taking = [cell for cell in registered if not cell.draining]
        lag_s = min((cell.recent_lag_s for cell in taking), default=0.0)
        missing = "drains" if memory.host.stopping or len(taking) < len(registered) else "no worker has registered"
        return [
            Check("registered", None if taking and not memory.host.stopping else missing),
            Check("redis", None if any(cell.reachable for cell in taking) else "no worker reaches it"),
            Check("lag", f"the event loops were blocked for {lag_s:.1f} s" if lag_s >= READY_BELOW_S else None),
        ]

    def _named(self, pool: str, check: Check) -> Check:
        return check if len(self._memories) == 1 else Check(f"{check.name} of {pool}", check.failure)

    async def metrics(self) -> bytes:
        """Return the metrics of host and workers."""
        page, *others = [self._page(pool) for pool in self._memories]
        for other in others:
            page.add_page(other)
        return page.render() + standard_metrics(self._pid)

    def _page(self, pool: str) -> Page:
        page = Page(pool_labels(self._prefix, pool), self._openings[pool])
        host, cells = self._memories[pool].snapshot()
        stuck = sum(_silent_s(cell) > self._stuck_after_s for cell in cells)
        counts = ProcessCounts(
            reconnects=host.reconnects + sum(cell.reconnects for cell in cells),
            cached_bytes=sum(cell.cached_bytes for cell in cells),
            cache_loads=host.cache_loads + sum(cell.cache_loads for cell in cells),
        )
        add_process(page, "worker", silent_loops=stuck, counts=counts)
        lags = [host.lag_counts, *(cell.lag_counts for cell in cells)]
        lag_counts = [sum(column) for column in zip(*lags, strict=True)]
        add_lag(page, lag_counts, host.lag_sum_s + sum(cell.lag_sum_s for cell in cells))
        states = dict.fromkeys(BY_NAME["orc_host_workers"].values, 0)
        for cell in cells:
            states[_state(cell)] += 1
        for state, count in states.items():
            page.add("orc_host_workers", count, state)
        page.add("orc_host_restarts_total", host.restarts)
        page.add("orc_host_slots", sum(cell.slots for cell in cells if _state(cell) == "running"))
        page.add("orc_host_slots_used", sum(cell.held for cell in cells))
        return page


def _silent_s(cell: WorkerCell) -> float:
    turned_s = cell.turned_s
    return time.monotonic() - turned_s if turned_s else 0.0


def _state(cell: WorkerCell) -> str:
    if cell.draining:
        return "draining"
    return "running" if cell.registered else "starting"
