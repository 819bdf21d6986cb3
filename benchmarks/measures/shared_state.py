"""Workspace changes beside common ways to share state that lose writes, wait or retry.

Fifty writers append to one key. A blob in one string is merged by a script, written after a WATCH, written blindly
after a read, or written under a lock with three tries; a list is the upper bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.asyncio import BlockingConnectionPool, Redis

from benchmarks import json_blob
from benchmarks.figures import Figure, Goal, figure_of
from benchmarks.goals import at_least_raw, at_most
from orchestrator.client.client import Orchestrator
from orchestrator.core.event_loop import run_loop

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from benchmarks.harness import Bench
    from orchestrator.workspace.workspace import Workspace

    Write = Callable[[int], Awaitable[int]]
    """Writes one message and returns the number of retries; -1 if it gave up."""
    Side = tuple[Write, Callable[[], Awaitable[int]]]
    """Writes, and counts the kept messages."""

_WRITERS, _MANY, _FEW = 50, 2_000, 200
_MESSAGE = {"role": "assistant", "content": "x" * 210, "tokens": 17}
_TEXT = json.dumps(_MESSAGE)
_PATHS = 2_000


@dataclass(frozen=True, slots=True)
class _Run:
    """One pass of one way."""

    rate: float
    p99_ms: float
    retries: float
    conflicts: float
    gave_up: float
    lost: float


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure appends by fifty writers, then one writer that changes one path of a document."""
    ways = {name: partial(_crowd, bench, opened, count) for name, (opened, count) in _WAYS.items()}
    runs = bench.in_turns({name: ways[name] for name in _SHORT}, rounds_factor=3)
    runs |= bench.in_turns({name: way for name, way in ways.items() if name not in _SHORT})
    rates = {name: [one.rate for one in rounds] for name, rounds in runs.items()}
    for name, rounds in runs.items():
        ours = name in {_OURS, _TWICE}
        base = {_RAW: [], _LONG: rates[_OURS]}.get(name, rates[_RAW][: len(rounds)])
        goals = {_OURS: (at_least_raw(0.7),), _LONG: (_FLAT,)}.get(name, ())
        what = f"{_WRITERS} writers, one key, {name}"
        yield figure_of("shared state", what, "appends/s", rates[name], base, goals=goals)
        yield figure_of("shared state", f"p99, {name}", "ms", [one.p99_ms for one in rounds])
        for words, unit, values in (
            ("tries again per append", "tries", [one.retries for one in rounds]),
            ("conflicts among all tries", "%", [one.conflicts for one in rounds]),
            ("given up", "%", [one.gave_up for one in rounds]),
            ("lost or doubled", "%", [one.lost for one in rounds]),
        ):
            if any(values) or (ours and unit == "%"):
                yield figure_of("shared state", f"{words}, {name}", unit, values, goals=(at_most(0),) if ours else ())
    single = bench.in_turns({name: partial(_alone, bench, opened) for name, opened in _SINGLE.items()}, rounds_factor=3)
    for name, values in single.items():
        base = {_HSET: [], _LARGE: single[_OURS]}.get(name, single[_HSET])
        goals = {_OURS: (at_least_raw(1 / 2.2),), _LARGE: (_FLAT,)}.get(name, ())
        yield figure_of("shared state", f"one path of a document, {name}", "writes/s", values, base, goals=goals)
    goal = Goal("≥ 4 x the blob", 4.0, at_most=False, of_ratio=True)
    name = f"one path of a document, {_OURS}, beside the blob"
    yield figure_of("shared state", name, "writes/s", single[_OURS], single[_BLOB], goals=(goal,))


def _crowd(bench: Bench, opened: Callable[[Bench], AbstractAsyncContextManager[Side]], count: int) -> _Run:
    async def run() -> _Run:
        async with opened(bench) as (write, kept):
            taken_s: list[float] = []
            tries: list[int] = []

            async def work(writer: int) -> None:
                for number in range(writer, count, _WRITERS):
                    began_s = time.perf_counter()
                    tries.append(await write(number))
                    taken_s.append(time.perf_counter() - began_s)

            began_s = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for writer in range(_WRITERS):
                    group.create_task(work(writer))
            total_s = time.perf_counter() - began_s
            confirmed = sum(one >= 0 for one in tries)
            failed = sum(one if one >= 0 else json_blob.TRIES for one in tries)
            return _Run(
                rate=count / total_s,
                p99_ms=sorted(taken_s)[int(len(taken_s) * 0.99)] * 1000,
                retries=sum(max(0, one) for one in tries) / count,
                conflicts=100 * failed / (failed + confirmed),
                gave_up=100 * (count - confirmed) / count,
                lost=100 * abs(confirmed - await kept()) / max(1, confirmed),
            )

    return run_loop(run)


# ------------------------------------------------------------------------------------------------------------- ours


@contextlib.asynccontextmanager
async def _workspace(bench: Bench) -> AsyncIterator[Workspace]:
    session = f"bench{random.random()}"
    async with Orchestrator(bench.server.url) as orc, orc.workspace(session).edit(agent="bench") as ws:
        yield ws


@contextlib.asynccontextmanager
async def _ours(bench: Bench, *, times: int = 1, before: int = 0) -> AsyncIterator[Side]:
    async with _workspace(bench) as ws:
        for _ in range(0, before, 500):
            await ws.append("log", *[_MESSAGE] * 500)

        async def write(number: int) -> int:
            sent = [ws.append("log", _MESSAGE, op_id=f"m{number}") for _ in range(times)]
            await asyncio.gather(*sent) if times > 1 else await sent[0]
            return 0

        async def kept() -> int:
            return len(await ws.log("log", last=10_000)) - before

        yield write, kept


@contextlib.asynccontextmanager
async def _list(bench: Bench, *, own_link: bool) -> AsyncIterator[Side]:
    async with _clients(bench) as client, Orchestrator(bench.server.url) as orc:
        execute: Any = orc.services.store.execute if own_link else client.execute_command
        await client.delete("list")

        async def write(_: int) -> int:
            await execute("RPUSH", "list", _TEXT)
            return 0

        async def kept() -> int:
            return int(await client.llen("list"))

        yield write, kept


# ------------------------------------------------------------------------------------------------ a blob in a string


@contextlib.asynccontextmanager
async def _clients(bench: Bench) -> AsyncIterator[Any]:
    pool = BlockingConnectionPool.from_url(bench.server.url, max_connections=_WRITERS, timeout=60)
    async with Redis.from_pool(pool) as client:
        yield client


@contextlib.asynccontextmanager
async def _blob(bench: Bench, way: Callable[[Any, str, Any], Awaitable[int]]) -> AsyncIterator[Side]:
    async with _clients(bench) as client:
        await client.delete("blob", "blob:lock")
        yield lambda _: way(client, "blob", _MESSAGE), partial(json_blob.kept, client, "blob")


# ------------------------------------------------------------------------------------------------------- one writer


def _alone(
    bench: Bench, opened: Callable[[Bench], AbstractAsyncContextManager[Callable[[int], Awaitable[Any]]]]
) -> float:
    async def run() -> float:
        async with opened(bench) as write:
            for number in range(200):
                await write(number)
            began_s = time.perf_counter()
            for number in range(_PATHS):
                await write(number)
            return _PATHS / (time.perf_counter() - began_s)

    return run_loop(run)


@contextlib.asynccontextmanager
async def _one_path(bench: Bench, *, paths: int) -> AsyncIterator[Callable[[int], Awaitable[Any]]]:
    async with _workspace(bench) as ws:
        for start in range(0, paths, 100):
            await ws.patch({f"path{number}": "x" * 100 for number in range(start, start + 100)})
        yield lambda number: ws.set("path7", number)


@contextlib.asynccontextmanager
async def _hset(bench: Bench, *, own_link: bool) -> AsyncIterator[Callable[[int], Awaitable[Any]]]:
    async with Orchestrator(bench.server.url) as orc, Redis.from_url(bench.server.url) as client:
        execute: Any = orc.services.store.execute if own_link else client.execute_command
        yield lambda number: execute("HSET", "hash", "path7", number)


@contextlib.asynccontextmanager
async def _ten_kb_blob(bench: Bench, *, own_link: bool) -> AsyncIterator[Callable[[int], Awaitable[Any]]]:
    async with Orchestrator(bench.server.url) as orc, Redis.from_url(bench.server.url) as client:
        execute: Any = orc.services.store.execute if own_link else client.execute_command
        await execute("SET", "document", json.dumps({f"path{number}": "x" * 90 for number in range(100)}))

        async def write(number: int) -> None:
            document = json.loads(await execute("GET", "document"))
            document["path7"] = number
            await execute("SET", "document", json.dumps(document))

        yield write


_OURS, _RAW, _HSET = "workspace", "RPUSH by redis-py", "HSET by redis-py"
_BARE = "RPUSH over our connection"
_TWICE, _LONG = "workspace, every append twice at once", "workspace, a log of 8,000 before"
_SHORT = (_OURS, _TWICE, _LONG, _RAW, _BARE)
"""Short passes with noisy results, which get more rounds."""
_LARGE, _BLOB = "workspace of 10,000 paths instead of 100", "10 kB blob, read, changed, set by redis-py"
_FLAT = Goal("≥ 0.9 x the small one", 0.9, at_most=False, of_ratio=True)
_WAYS: dict[str, tuple[Callable[[Bench], AbstractAsyncContextManager[Side]], int]] = {
    _OURS: (_ours, _MANY),
    _TWICE: (partial(_ours, times=2), _MANY),
    _LONG: (partial(_ours, before=8_000), _MANY),
    _RAW: (partial(_list, own_link=False), _MANY),
    _BARE: (partial(_list, own_link=True), _MANY),
    "blob merged by a script": (partial(_blob, way=json_blob.merge), _MANY // 2),
    "blob under WATCH": (partial(_blob, way=json_blob.watch), _FEW),
    "blob, read and set blindly": (partial(_blob, way=json_blob.blind), _MANY // 2),
    "blob under a lock with three tries": (partial(_blob, way=json_blob.under_lock), _FEW),
}
_SINGLE: dict[str, Callable[[Bench], AbstractAsyncContextManager[Callable[[int], Awaitable[Any]]]]] = {
    _OURS: partial(_one_path, paths=100),
    _LARGE: partial(_one_path, paths=10_000),
    _HSET: partial(_hset, own_link=False),
    "HSET over our connection": partial(_hset, own_link=True),
    _BLOB: partial(_ten_kb_blob, own_link=False),
    "10 kB blob over our connection": partial(_ten_kb_blob, own_link=True),
}
