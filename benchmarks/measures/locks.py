"""Named locks beside SET NX with a releasing script, and beside the lock of redis-py, alone and contended."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
from redis.asyncio import Redis

from benchmarks.figures import Figure, Goal, figure_of
from benchmarks.goals import at_least_raw, at_most
from benchmarks.server_cost import cost_between, read_server
from orchestrator.client.client import Orchestrator
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from benchmarks.harness import Bench

    Hold = Callable[[], AbstractAsyncContextManager[Any]]
    Opened = Callable[[Bench], AbstractAsyncContextManager[Hold]]

_PAIRS = 3_000
_CONTENDERS, _TURNS, _HELD_S = 20, 5, 0.002
_IDEAL_S = _CONTENDERS * _TURNS * _HELD_S
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end"


@dataclass(frozen=True, slots=True)
class _Contention:
    """One pass with contenders."""

    total_s: float
    longest_s: float
    trips: float


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure acquire and release without contention, then contenders for one lock."""
    alone = bench.in_turns({name: partial(_alone, bench, opened) for name, opened in _ALONE.items()}, rounds_factor=3)
    for name, rates in alone.items():
        base, goals = ((), ()) if name == _BARE else (alone[_BARE], (at_least_raw(0.9),) if name == _OURS else ())
        yield figure_of("locks", f"acquire and release, {name}", "pairs/s", rates, base, goals=goals)
    contended = bench.in_turns({name: partial(_contended, bench, opened) for name, opened in _CONTENDED.items()})
    for name, runs in contended.items():
        ours = name == _OURS
        what = f"{_CONTENDERS} contenders x {_TURNS}, {_HELD_S * 1000:g} ms held"
        totals = [one.total_s for one in runs]
        goal = Goal(f"≤ 2 x ideal ({_IDEAL_S:g} s)", 2 * _IDEAL_S, at_most=True)
        yield figure_of("locks", f"{what}, {name}", "s", totals, goals=(goal,) if ours else ())
        fair = [total_s / _TURNS * 1000 for total_s in totals]
        share = Goal("≤ 2 x fair share", 2.0, at_most=True, of_ratio=True)
        waits = [one.longest_s * 1000 for one in runs]
        yield figure_of("locks", f"longest wait, {name}", "ms", waits, fair, goals=(share,) if ours else ())
        trips = [one.trips for one in runs]
        yield figure_of(
            "locks", f"round trips per acquisition, {name}", "trips", trips, goals=(at_most(4),) if ours else ()
        )


def _alone(bench: Bench, opened: Opened) -> float:
    async def run() -> float:
        async with opened(bench) as hold:
            for _ in range(200):
                async with hold():
                    pass
            began_s = time.perf_counter()
            for _ in range(_PAIRS):
                async with hold():
                    pass
            return _PAIRS / (time.perf_counter() - began_s)

    return run_loop(run)


def _contended(bench: Bench, opened: Opened) -> _Contention:
    async def run() -> _Contention:
        waits: list[float] = []

        async def contend(hold: Hold) -> None:
            for _ in range(_TURNS):
                asked_s = time.perf_counter()
                async with hold():
                    waits.append(time.perf_counter() - asked_s)
                    await anyio.sleep(_HELD_S)

        async with opened(bench) as hold:

            async def all_contend() -> float:
                waits.clear()
                began_s = time.perf_counter()
                async with anyio.create_task_group() as group:
                    for _ in range(_CONTENDERS):
                        group.start_soon(contend, hold)
                return time.perf_counter() - began_s

            await all_contend()  # opens the connections of the waiting clients
            before = read_server(bench.meter)
            total_s = await all_contend()
            calls = cost_between(before, read_server(bench.meter)).calls_by_command
        # Our scripts call SET themselves; a peer sends it.
        sent = sum(calls.get(name, 0) for name in ("evalsha", "blpop" if calls.get("blpop") else "set"))
        return _Contention(total_s, max(waits), sent / (_CONTENDERS * _TURNS))

    return run_loop(run)


@contextlib.asynccontextmanager
async def _ours(bench: Bench) -> AsyncIterator[Hold]:
    async with Orchestrator(bench.server.url) as orc:
        locks = orc.locks("session:bench")
        yield lambda: locks.hold("lock", ttl=10, wait=60)


@contextlib.asynccontextmanager
async def _bare(bench: Bench, *, own_link: bool) -> AsyncIterator[Hold]:
    """Use SET NX PX and a script that compares and deletes, by redis-py or over our connection."""
    async with Orchestrator(bench.server.url) as orc, Redis.from_url(bench.server.url) as client:
        execute: Any = orc.services.store.execute if own_link else client.execute_command
        sha = await orc.services.store.execute("SCRIPT", "LOAD", _RELEASE)

        @contextlib.asynccontextmanager
        async def hold() -> AsyncIterator[None]:
            token = os.urandom(16).hex()
            if await execute("SET", "bare", token, "NX", "PX", 10_000) is None:
                raise RuntimeError("the lock is taken")
            try:
                yield
            finally:
                await execute("EVALSHA", sha, 1, "bare", token)

        yield hold


@contextlib.asynccontextmanager
async def _redis_py(bench: Bench, *, poll_s: float) -> AsyncIterator[Hold]:
    async with Redis.from_url(bench.server.url) as client:
        yield lambda: client.lock("peer", timeout=10, sleep=poll_s, blocking_timeout=60)


_OURS, _BARE = "ours", "SET NX and a script by redis-py"
_ALONE: dict[str, Opened] = {
    _OURS: _ours,
    _BARE: partial(_bare, own_link=False),
    "SET NX and a script over our own connection": partial(_bare, own_link=True),
    "redis-py": partial(_redis_py, poll_s=0.1),
}
_CONTENDED: dict[str, Opened] = {
    _OURS: _ours,
    "redis-py, polling every 100 ms": partial(_redis_py, poll_s=0.1),
    "redis-py, polling every 10 ms": partial(_redis_py, poll_s=0.01),
}
