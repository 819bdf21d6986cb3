"""Health and metrics of a supervisor. One that stands by is as ready as the leader."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.monitoring.checks import Check
from orchestrator.monitoring.exposition import PoolExposition, pool_labels
from orchestrator.monitoring.loop_lag import READY_BELOW_S, LoopLag, measure_lag
from orchestrator.monitoring.pool_reader import PoolReader
from orchestrator.monitoring.process_metrics import add_lag, add_process, standard_metrics
from orchestrator.monitoring.server import check_installed, serve_health

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.settings import Settings
    from orchestrator.core.turns import LoopTurns
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

    Raises:
        ConfigError: the libraries of the server are missing.
    """

    def __init__(self, settings: Settings, address: str) -> None:
        check_installed("supervisor.health")
        self._address, self._pool = address, settings.pool
        self._services: Services | None = None
        self._reader: PoolReader | None = None
        self._supervisor = ""
        self.lag = LoopLag()
        self._exposition = PoolExposition(pool_labels(settings.prefix, settings.pool))
        self._scraping, self._checking = anyio.Lock(), anyio.Lock()
        self._scraped: tuple[float, bytes] | None = None
        self._checked: tuple[float, Check] | None = None
        self._fails = False

    async def serve(self) -> None:
        """Serve until cancelled."""
        async with anyio.create_task_group() as group:
            group.start_soon(measure_lag, self.lag.record)
            group.start_soon(serve_health, self._address, self)

    def connected(self, services: Services, supervisor: str) -> None:
        """Take the services when Redis has answered; `supervisor` is the id of this supervisor."""
        self._services, self._reader, self._supervisor = services, PoolReader(services.store), supervisor
        self._scraped = self._checked = None

    def live(self) -> Sequence[Check]:
        """Check the loops. The answer itself proves that the event loop turns."""
        return [Check("loops") if self._services is None else check_loops(self._services.turns)]

    async def ready(self) -> Sequence[Check]:
        """Check Redis, the scripts and the event loop."""
        return [*self.live(), await self._check_redis(), check_lag(self.lag)]

    async def _check_redis(self) -> Check:
        async with self._checking:
            if self._checked is None or time.monotonic() - self._checked[0] > SHARED_S:
                failure: str | None = "has not answered since the start"
                if self._services is not None:
                    failure = await self._ask_redis(self._services)
                self._checked = time.monotonic(), Check("redis", failure)
            return self._checked[1]

    async def _ask_redis(self, services: Services) -> str | None:
        with anyio.move_on_after(ANSWER_WITHIN_S):
            try:
                await services.store.load_scripts()  # one SCRIPT EXISTS, unless Redis has lost the scripts
            except StoreError as failure:
                return str(failure)
            return None
        return f"no answer for {ANSWER_WITHIN_S:g} s"

    async def metrics(self) -> bytes:
        """Return the metrics of the pool, of Redis and of this process."""
        async with self._scraping:
            if self._scraped is None or time.monotonic() - self._scraped[0] > SHARED_S:
                text = await self._scrape()
                self._scraped = time.monotonic(), text
            return self._scraped[1]

    async def _scrape(self) -> bytes:
        page = self._exposition.page()
        silent = self._services.turns.silent() if self._services is not None else ()
        add_process(page, "supervisor", silent_loops=len(silent))
        add_lag(page, self.lag.counts, self.lag.sum_s)
        reading = await self._read()
        if reading is None:
            page.add("orc_redis_up", 0)
        else:
            await self._exposition.add(page, reading, supervisor=self._supervisor)
        return page.render() + standard_metrics()

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
