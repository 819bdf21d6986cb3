"""Health and metrics of a supervisor, of all its pools. One that stands by is as ready as the leader."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.monitoring.checks import Check
from orchestrator.monitoring.exposition import Page, PoolExposition, pool_labels
from orchestrator.monitoring.loop_lag import READY_BELOW_S, LoopLag, measure_lag
from orchestrator.monitoring.pool_reader import PoolReader
from orchestrator.monitoring.process_metrics import add_lag, add_process, standard_metrics
from orchestrator.monitoring.server import check_installed, serve_health

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.core.turns import LoopTurn, LoopTurns
    from orchestrator.monitoring.pool_reader import PoolReading
    from orchestrator.services import Services

SHARED_S: Final = 1.0
"""Age up to which requests share one answer."""
ANSWER_WITHIN_S: Final = 2.0
"""Time for Redis to answer a check or a scrape."""

_log = get_logger(__name__)


def check_loops(turns: LoopTurns) -> Check:
    """Check that no watched loop is silent for longer than its limit."""
    silent = ", ".join(f"{turn.name} has not turned for {turn.silent_s():.0f} s" for turn in turns.silent())
    return Check("loops", silent or None)


def check_lag(lag: LoopLag) -> Check:
    """Check that timers of the event loop are not late."""
    late = lag.recent_s >= READY_BELOW_S
    return Check("lag", f"the event loop was blocked for {lag.recent_s:.1f} s" if late else None)


class SupervisorHealth:
    """Answers for a supervisor, also while it waits for Redis.

    Args:
        settings: all settings.
        address: at which it serves.
        pools: that it serves; by default that of the settings.

    Raises:
        ConfigError: the libraries of the server are missing.
    """

    def __init__(self, settings: Settings, address: str, pools: Sequence[str] = ()) -> None:
        check_installed("supervisor.health")
        self._address = address
        self.lag = LoopLag()
        self._pools = {pool: _PoolHealth(settings.prefix, pool) for pool in pools or (settings.pool,)}
        # Numbers of the process belong to no pool if it has several.
        only = next(iter(self._pools)) if len(self._pools) == 1 else ""
        self._process_labels, self._openings = pool_labels(settings.prefix, only), dict[tuple[str, ...], str]()

    async def serve(self) -> None:
        """Serve until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(measure_lag, self.lag.record)
            group.start_soon(serve_health, self._address, self)

    def connected(self, services: Services, supervisor: str) -> None:
        """Take the services of a pool when Redis has answered; `supervisor` is the id of this supervisor."""
        self._pools[services.settings.pool].connected(services, supervisor)

    def failed(self, pool: str, failure: str) -> None:
        """Note that a pool does not run, and why, until `connected`."""
        self._pools[pool].failed(failure)

    def live(self) -> Sequence[Check]:
        """Check the loops. The answer itself proves that the event loop turns."""
        return [self._named(pool, health.check_loops()) for pool, health in self._pools.items()]

    async def ready(self) -> Sequence[Check]:
        """Check Redis, the scripts and the event loop."""
        checks = dict.fromkeys(self._pools, Check("redis"))

        async def check(pool: str, health: _PoolHealth) -> None:
            checks[pool] = self._named(pool, await health.check_redis())

        async with anyio.create_task_group() as group:
            for pool, health in self._pools.items():
                group.start_soon(check, pool, health)
        return [*self.live(), *checks.values(), check_lag(self.lag)]

    def _named(self, pool: str, check: Check) -> Check:
        return check if len(self._pools) == 1 else Check(f"{check.name} of {pool}", check.failure)

    async def metrics(self) -> bytes:
        """Return the metrics of the pools, of Redis and of this process."""
        process = Page(self._process_labels, self._openings)
        silent = sum(len(health.silent_loops()) for health in self._pools.values())
        add_process(process, "supervisor", silent_loops=silent)
        add_lag(process, self.lag.counts, self.lag.sum_s)
        pages: dict[str, Page] = {}

        async def read(pool: str, health: _PoolHealth) -> None:
            pages[pool] = await health.page()

        async with anyio.create_task_group() as group:
            for pool, health in self._pools.items():
                group.start_soon(read, pool, health)
        for pool in self._pools:
            process.add_page(pages[pool])
        return process.render() + standard_metrics()


class _PoolHealth:
    """Answers for one pool. Requests within `SHARED_S` share an answer of Redis."""

    def __init__(self, prefix: str, pool: str) -> None:
        self._services: Services | None = None
        self._reader: PoolReader | None = None
        self._supervisor = ""
        self._exposition = PoolExposition(pool_labels(prefix, pool))
        self._scraping, self._checking = anyio.Lock(), anyio.Lock()
        self._scraped: tuple[float, Page] | None = None
        self._checked: tuple[float, Check] | None = None
        self._failure: str | None = None
        self._fails = False

    def connected(self, services: Services, supervisor: str) -> None:
        self._services, self._reader, self._supervisor = services, PoolReader(services.store), supervisor
        self._scraped = self._checked = self._failure = None

    def failed(self, failure: str) -> None:
        self._services = self._reader = self._scraped = self._checked = None
        self._failure = failure

    def silent_loops(self) -> Sequence[LoopTurn]:
        return self._services.turns.silent() if self._services is not None else ()

    def check_loops(self) -> Check:
        return Check("loops") if self._services is None else check_loops(self._services.turns)

    async def check_redis(self) -> Check:
        async with self._checking:
            if self._checked is None or time.monotonic() - self._checked[0] > SHARED_S:
                failure = self._failure or "has not answered since the start"
                self._checked = (
                    time.monotonic(),
                    Check("redis", failure if self._services is None else await self._ask_redis(self._services)),
                )
            return self._checked[1]

    async def _ask_redis(self, services: Services) -> str | None:
        with anyio.move_on_after(ANSWER_WITHIN_S):
            try:
                await services.store.load_scripts()  # one SCRIPT EXISTS, unless Redis has lost the scripts
            except StoreError as failure:
                return str(failure)
            return None
        return f"no answer for {ANSWER_WITHIN_S:g} s"

    async def page(self) -> Page:
        async with self._scraping:
            if self._scraped is None or time.monotonic() - self._scraped[0] > SHARED_S:
                page = await self._scrape()
                self._scraped = time.monotonic(), page
            return self._scraped[1]

    async def _scrape(self) -> Page:
        page = self._exposition.page()
        reading = await self._read()
        if reading is None:
            page.add("orc_redis_up", 0)
        else:
            await self._exposition.add(page, reading, supervisor=self._supervisor)
        return page

    async def _read(self) -> PoolReading | None:
        if self._reader is None:
            return None
        try:
            with anyio.fail_after(ANSWER_WITHIN_S):
                reading = await self._reader.read()
        except (StoreError, TimeoutError) as failure:
            if not self._fails:
                _log.warning("metrics_read_failed", error=str(failure) or f"no answer for {ANSWER_WITHIN_S:g} s")
            self._fails = True
            return None
        self._fails = False
        return reading
