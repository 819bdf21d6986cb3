"""Runs the pools of a supervisor process side by side.

A pool that fails is tried again while another one runs, so that a pool with damaged data, or with a version floor above
this program, does not end the others. When no pool runs, the process ends, and the service manager decides.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.backoff import ExponentialBackoff
from orchestrator.core.errors import OrchestratorError
from orchestrator.core.log import bind_context, get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

HEALTHY_AFTER_S: Final = 60.0
"""Time without a failure after which the next one starts a new back-off."""
_BACKOFF: Final = ExponentialBackoff(base_s=1.0, cap_s=30.0)
_log = get_logger(__name__)


class PoolRunner:
    """Serves several pools until cancelled.

    Args:
        pools: their names.
        serve: serves one pool until cancelled.
        failed: called with a pool that is tried again later, and the text of its failure.
    """

    def __init__(
        self, pools: Sequence[str], serve: Callable[[str], Awaitable[None]], *, failed: Callable[[str, str], None]
    ) -> None:
        self._pools, self._serve, self._tell_failed = pools, serve, failed
        self._failures: dict[str, Exception] = {}
        self._none_runs = anyio.Event()

    def connected(self, pool: str) -> None:
        """Note that a pool runs, or runs again."""
        self._failures.pop(pool, None)

    async def run(self) -> None:
        """Serve all pools.

        Raises:
            Exception: the last failure, when no pool runs.
        """
        async with anyio.create_task_group() as group:
            for pool in self._pools:
                group.start_soon(self._keep_serving, pool)
            await self._none_runs.wait()
            group.cancel_scope.cancel()
        raise list(self._failures.values())[-1]

    async def _keep_serving(self, pool: str) -> None:
        if len(self._pools) > 1:
            bind_context(pool=pool)
        failures = 0
        while True:
            started_s = time.monotonic()
            failure = await self._failure_of(pool)
            self._failures.pop(pool, None)
            self._failures[pool] = failure
            if len(self._failures) == len(self._pools):
                self._none_runs.set()
                return
            failures = 1 if time.monotonic() - started_s > HEALTHY_AFTER_S else failures + 1
            pause_s = _BACKOFF.delay_s(failures)
            unexpected = None if isinstance(failure, OrchestratorError) else failure
            _log.error(
                "pool_failed", pool=pool, error=str(failure), retry_in_ms=round(pause_s * 1000), exc_info=unexpected
            )
            self._tell_failed(pool, str(failure))
            await anyio.sleep(pause_s)

    async def _failure_of(self, pool: str) -> Exception:
        try:
            await self._serve(pool)
        except Exception as failure:  # noqa: BLE001 - a fault in one pool must not end the others
            return _only_cause(failure)
        return RuntimeError("its loops have ended")


def _only_cause(failure: Exception) -> Exception:
    """Return the failure inside groups of one."""
    while isinstance(failure, ExceptionGroup) and len(failure.exceptions) == 1:
        failure = failure.exceptions[0]
    return failure
