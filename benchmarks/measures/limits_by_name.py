"""Cost of a check of a named limit: fifty callers, beside a bare ZADD."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.asyncio import BlockingConnectionPool, Redis

from benchmarks.figures import Figure, figure_of
from benchmarks.goals import at_least_raw
from orchestrator.client.client import Orchestrator
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from benchmarks.harness import Bench

    Check = Callable[[], Awaitable[Any]]

_CALLERS, _CHECKS = 50, 5_000


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure checks per second, allowed and refused."""
    rates = bench.in_turns({name: partial(_rate, bench, opened) for name, opened in _WAYS.items()})
    for name, values in rates.items():
        base, goals = ((), ()) if name == _RAW else (rates[_RAW], (at_least_raw(0.7),) if name == _OURS else ())
        yield figure_of("limits by name", f"{_CALLERS} callers, {name}", "checks/s", values, base, goals=goals)


def _rate(bench: Bench, opened: Callable[[Bench], AbstractAsyncContextManager[Check]]) -> float:
    async def run() -> float:
        async with opened(bench) as check:

            async def call() -> None:
                for _ in range(_CHECKS // _CALLERS):
                    await check()

            await asyncio.gather(*[check() for _ in range(_CALLERS)])
            began_s = time.perf_counter()
            await asyncio.gather(*[call() for _ in range(_CALLERS)])
            return _CHECKS / (time.perf_counter() - began_s)

    return run_loop(run)


@contextlib.asynccontextmanager
async def _ours(bench: Bench, *, limit: int) -> AsyncIterator[Check]:
    async with Orchestrator(bench.server.url) as orc:
        yield lambda: orc.limits.check("bench", limit, 60)


@contextlib.asynccontextmanager
async def _zadd(bench: Bench, *, own_link: bool) -> AsyncIterator[Check]:
    pool = BlockingConnectionPool.from_url(bench.server.url, max_connections=_CALLERS, timeout=60)
    async with Redis.from_pool(pool) as client, Orchestrator(bench.server.url) as orc:
        execute: Any = orc.services.store.execute if own_link else client.execute_command
        yield lambda: execute("ZADD", "window", time.time_ns() // 1000, secrets.token_urlsafe(12))


_OURS, _RAW = "allowed", "ZADD by redis-py"
_WAYS: dict[str, Callable[[Bench], AbstractAsyncContextManager[Check]]] = {
    _OURS: partial(_ours, limit=100_000),
    "refused": partial(_ours, limit=10),
    _RAW: partial(_zadd, own_link=False),
    "ZADD over our connection": partial(_zadd, own_link=True),
}
