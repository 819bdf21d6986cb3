"""Memories beside the code forms of the source document: stores, bytes, combined queries and positions."""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis

from benchmarks import sources
from benchmarks.figures import Figure, Goal, figure_of
from benchmarks.goals import at_most
from benchmarks.timing import latencies
from orchestrator.client.client import Orchestrator
from orchestrator.core.event_loop import run_loop
from orchestrator.core.settings_sources import load_settings
from orchestrator.memory.model import MemoryQuery, Record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

    from benchmarks.harness import Bench
    from benchmarks.timing import Call
    from orchestrator.bench.measures import Latencies
    from orchestrator.memory.memory import Memory

    Opened = Callable[[Bench], AbstractAsyncContextManager[Call]]

_STORES, _CALLS, _RECORDS, _MANY = 2_000, 500, 10_000, 100_000
_KINDS, _ACTIONS, _STEPS, _HELD = 5, 10, 1_000, 20
BODY = {"resource_level": 0.75, "position_x": 10.5, "position_y": 20.25, "note": "x" * 221}
"""293 bytes of JSON."""
_BYTES = len(json.dumps(BODY, separators=(",", ":")))


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure stores, then reads of memories of several sizes."""
    runs = bench.in_turns(
        {name: partial(_timed, bench, opened) for name, opened in _STORES_BY_NAME.items()}, rounds_factor=3
    )
    stores = {name: [1000 / run.p50 for run in rounds] for name, rounds in runs.items()}
    for name, values in stores.items():
        goals = (Goal("≥ 3 x five commands", 3.0, at_most=False, of_ratio=True),) if name == _OURS else ()
        base = () if name == _FIVE else stores[_FIVE]
        yield figure_of("memory", f"store, one writer, {name}", "stores/s", values, base, goals=goals)
    yield from _bytes(bench)
    yield from _positions(bench)
    yield from _queries(bench)


def record_of(number: int) -> Record:
    """Return the record of a number: spread over steps, kinds, actions and importances."""
    return Record(
        id=f"ada-{number}",
        step=number * _STEPS // _RECORDS,
        kind=f"kind{number % _KINDS}",
        content=BODY,
        importance=(number * 7919 % 1000) / 1000,
        action=f"action{number % _ACTIONS}",
    )


@contextlib.asynccontextmanager
async def memory_of(bench: Bench, *, records: int = 0) -> AsyncIterator[Memory]:
    """Open the memory of an agent with some records."""
    settings = load_settings(
        overrides={"redis.url": bench.server.url, "memory.max_stm_records": 10 * _MANY, "memory.max_bytes": 2**34}
    )
    async with Orchestrator(settings=settings) as orc:
        memory = orc.memory(f"bench{random.random()}")
        for start in range(0, records, 100):
            await memory.store_many([record_of(number) for number in range(start, min(start + 100, records))])
        yield memory


def _timed(bench: Bench, opened: Opened, calls: int = _STORES) -> Latencies:
    async def run() -> Latencies:
        async with opened(bench) as call:
            return await latencies(call, calls)

    return run_loop(run)


# ----------------------------------------------------------------------------------------------------------- stores


@contextlib.asynccontextmanager
async def _store(bench: Bench) -> AsyncIterator[Call]:
    async with memory_of(bench) as memory:
        yield lambda number: memory.store(record_of(number))


@contextlib.asynccontextmanager
async def _five_commands(bench: Bench, *, own_link: bool) -> AsyncIterator[Call]:
    async with Orchestrator(bench.server.url) as orc, Redis.from_url(bench.server.url) as client:
        yield partial(_store_as_source, _OwnLink(orc) if own_link else client)


class _OwnLink:
    """The commands of the source form over our connection."""

    def __init__(self, orc: Orchestrator) -> None:
        self._execute = orc.services.store.execute

    async def hset(self, key: str, field: str, value: str) -> Any:
        return await self._execute("HSET", key, field, value)

    async def zadd(self, key: str, members: dict[str, float]) -> Any:
        return await self._execute(
            "ZADD", key, *[part for member, score in members.items() for part in (str(score), member)]
        )

    async def sadd(self, key: str, member: str) -> Any:
        return await self._execute("SADD", key, member)


async def _store_as_source(client: Any, number: int, agent: str = "ada") -> None:
    record = record_of(number)
    assert record.id is not None
    assert record.action is not None
    await sources.store_memory(
        client,
        agent,
        record.id,
        json.dumps(BODY, separators=(",", ":")),
        step=record.step,
        kind=record.kind,
        action=record.action,
        importance=record.importance,
    )


@contextlib.asynccontextmanager
async def _twelve_commands(bench: Bench) -> AsyncIterator[Call]:
    async with Redis.from_url(bench.server.url) as client:
        yield lambda number: sources.store_agent_state(client, "ada", {**BODY, "agent_type": "t"}, "sim", number)


# ------------------------------------------------------------------------------------------------------------ bytes


def _bytes(bench: Bench) -> Iterator[Figure]:
    runs = bench.in_turns({name: partial(_bytes_each, bench, fill) for name, fill in _FILLS.items()})
    for name, values in runs.items():
        yield figure_of("memory", f"bytes per record, {name}", "bytes", values)
        overhead = [value - _BYTES for value in values]
        goals = (at_most(500),) if name == _OURS else ()
        yield figure_of("memory", f"bytes per record beside its {_BYTES} bytes, {name}", "bytes", overhead, goals=goals)


def _bytes_each(bench: Bench, fill: Callable[[Bench], Any]) -> float:
    run_loop(partial(fill, bench))
    # Key by key, because the memory of the whole server has its tables, scripts and clients too.
    return sum(bench.meter.memory_usage(key, samples=0) or 0 for key in bench.meter.scan_iter(count=1000)) / _RECORDS


async def _fill(bench: Bench) -> None:
    async with memory_of(bench, records=_RECORDS):
        pass


async def _fill_as_source(bench: Bench) -> None:
    async with Redis.from_url(bench.server.url) as client:
        for number in range(_RECORDS):
            await _store_as_source(client, number)


# --------------------------------------------------------------------------------------------------------- positions


def _positions(bench: Bench) -> Iterator[Figure]:
    runs = bench.in_turns(
        {name: partial(_timed, bench, opened, _CALLS) for name, opened in _POSITIONS.items()}, rounds_factor=3
    )
    p50 = {name: [run.p50 for run in rounds] for name, rounds in runs.items()}
    for name, values in p50.items():
        goals = (Goal("≤ 2 x HGET", 2.0, at_most=True, of_ratio=True),) if name in {_AT, _HISTORY} else ()
        base = () if name == _HGET else p50[_HGET]
        yield figure_of("memory", f"{name}, p50", "ms", values, base, goals=goals)


@contextlib.asynccontextmanager
async def _position(bench: Bench, read: Callable[[Memory], Any]) -> AsyncIterator[Call]:
    async with memory_of(bench, records=_HELD) as memory:
        yield lambda _: read(memory)


@contextlib.asynccontextmanager
async def _hget(bench: Bench, *, own_link: bool) -> AsyncIterator[Call]:
    async with Orchestrator(bench.server.url) as orc, Redis.from_url(bench.server.url) as client:
        await client.hset("hash", "field", json.dumps(BODY))
        execute: Any = orc.services.store.execute if own_link else client.execute_command
        yield lambda _: execute("HGET", "hash", "field")


@contextlib.asynccontextmanager
async def _source_history(bench: Bench) -> AsyncIterator[Call]:
    async with Redis.from_url(bench.server.url) as client:
        for number in range(_HELD):
            await sources.store_agent_state(client, "ada", dict(BODY), "sim", number)
        yield lambda _: sources.state_history(client, "ada")


# ----------------------------------------------------------------------------------------------------------- queries


@dataclass(frozen=True, slots=True)
class _Size:
    records: int
    p50_goal_ms: float
    p99_goal_ms: float | None


def _queries(bench: Bench) -> Iterator[Figure]:
    """Time queries of steps, a kind and an importance. Each memory is filled once, and read in rounds."""
    for size in (_Size(_RECORDS, 1.0, 4.0), _Size(_MANY, 3.0, None)):
        bench.clean()
        rounds = run_loop(partial(_query_rounds, bench, size.records))
        for name, runs in rounds.items():
            for words, goal_ms in (("p50", size.p50_goal_ms), ("p99", size.p99_goal_ms)):
                goals = (at_most(goal_ms),) if name == _OURS and goal_ms is not None else ()
                what = f"combined query of {size.records:,} records, {name}, {words}"
                yield figure_of("memory", what, "ms", [getattr(run, words) for run in runs], goals=goals)
    bench.clean()


async def _query_rounds(bench: Bench, records: int) -> dict[str, list[Latencies]]:
    async with memory_of(bench, records=records) as memory, Redis.from_url(bench.server.url) as client:
        if records == _RECORDS:
            for number in range(records):
                await _store_as_source(client, number)
        last = record_of(records - 1).step

        def lo(number: int) -> int:
            return number * 37 % (last - last // 10)

        async def ours(number: int) -> None:
            since = lo(number)
            found = await memory.query(
                MemoryQuery(since=since, until=since + last // 10, kinds=("kind1",), min_importance=0.7, limit=50)
            )
            assert found.records

        async def source(number: int) -> None:
            since = lo(number)
            assert await sources.important_of_kind(
                client, "ada", since=since, until=since + last // 10, kind="kind1", least=0.7
            )

        ways: dict[str, Call] = {_OURS: ours, **({"the source's form": source} if records == _RECORDS else {})}
        taken: dict[str, list[Latencies]] = {name: [] for name in ways}
        for _ in range(bench.sizes.rounds):
            for name, way in ways.items():
                taken[name].append(await latencies(way, _CALLS if name == _OURS else 50))
        return taken


_OURS, _FIVE = "memory", "the source's five commands"
_STORES_BY_NAME: dict[str, Opened] = {
    _OURS: _store,
    _FIVE: partial(_five_commands, own_link=False),
    "five commands over our connection": partial(_five_commands, own_link=True),
    "the source's state of an agent, twelve commands": _twelve_commands,
}
_FILLS: dict[str, Callable[[Bench], Any]] = {_OURS: _fill, _FIVE: _fill_as_source}
_AT, _HISTORY, _HGET = "at(-3)", "history(5)", "HGET by redis-py"
_POSITIONS: dict[str, Opened] = {
    _AT: partial(_position, read=lambda memory: memory.at(-3)),
    _HISTORY: partial(_position, read=lambda memory: memory.history(5)),
    _HGET: partial(_hget, own_link=False),
    "HGET over our connection": partial(_hget, own_link=True),
    "the source's history of 5, in ten trips": _source_history,
}
