"""Recall by meaning on each rung, beside the source document's loop over buckets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
from redis.asyncio import Redis

from benchmarks import sources
from benchmarks.clouds import NEIGHBOURS, Planes, clustered, of_texts
from benchmarks.figures import Figure, Goal, figure_of
from benchmarks.goals import at_least, at_most
from benchmarks.harness import say
from benchmarks.processes import running
from benchmarks.server import running_server
from benchmarks.timing import latencies
from orchestrator.client.client import Orchestrator
from orchestrator.core.event_loop import run_loop
from orchestrator.core.settings_sources import load_settings
from orchestrator.embedded.server_binary import find_server_binary
from orchestrator.memory.model import MemoryQuery, Record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

    from benchmarks.clouds import Cloud
    from benchmarks.harness import Bench
    from benchmarks.processes import Child
    from benchmarks.server import Server
    from orchestrator.bench.measures import Latencies
    from orchestrator.memory.memory import Memory

    Search = Callable[[int], Awaitable[list[int]]]
    """Returns the numbers of the vectors found for an asked one."""

_KINDS: Final = 50
_KIND: Final = 7
_BATCH, _AT_ONCE = 100, 8
_ANSWERS_S, _PASS_S = 30.0, 6.0
_WITH_VECTOR_SETS: Final = 8
_SMALL: Final = 10_000
"""Number of vectors up to which the goals of the smaller size hold."""
_SOURCE: Final = "the source's loop"
_SELECTED: Final = MemoryQuery(kinds=(f"kind{_KIND}",))


@dataclass(slots=True)
class _Way:
    """One way to search the vectors of a cloud.

    Attributes:
        search: asks for the nearest vectors.
        selected: asks for those of one record in fifty; None if it cannot.
        rate: insertions per second.
        bytes: memory per vector.
        runs: latencies of each round.
        selected_runs: those of selective searches.
    """

    name: str
    search: Search
    selected: Search | None
    rate: float
    bytes: float
    recall: float = 0.0
    selected_recall: float = 0.0
    runs: list[Latencies] = field(default_factory=list)
    selected_runs: list[Latencies] = field(default_factory=list)


def measure(bench: Bench) -> Iterator[Figure]:
    """Measure each number of vectors, clustered ones and those of texts."""
    with contextlib.ExitStack() as stack:
        older = _older_server(bench, stack)
        for size in bench.sizes.vectors:
            for cloud in (clustered(size), of_texts(size)):
                if cloud.size == size:
                    say(f"  {size:,} vectors, {cloud.name}")
                    yield from run_loop(partial(_figures, bench, older, cloud))
                    bench.clean()


def _older_server(bench: Bench, stack: contextlib.ExitStack) -> Server:
    """Return a server without vector sets: the installed one if it is older than 8.0, else that of the run."""
    path = shutil.which("redis-server")
    if path is None or _major(find_server_binary(Path(path)).version) >= _WITH_VECTOR_SETS:
        return bench.server
    folder = bench.folder / "older"
    folder.mkdir()
    return stack.enter_context(running_server(folder, Path(path), unix_socket=bench.server.url.startswith("unix:")))


def _major(version: str) -> int:
    return int(version.partition(".")[0])


async def _figures(bench: Bench, older: Server, cloud: Cloud) -> list[Figure]:
    figures: list[Figure] = []
    async with contextlib.AsyncExitStack() as stack:
        # Each server is filled by one way at a time, because the memory that the server uses is read before and after.
        ways = [await stack.enter_async_context(_source(bench.server, cloud))]
        best = ["vectorset"] if _major(bench.server.version) >= _WITH_VECTOR_SETS else []
        newer = [(bench.server, rung) for rung in (*best, "exact")]
        for server, rung in (*newer, (older, "lsh"), (older, "exact")):
            say(f"    fill {rung} on {server.version}")
            ways.append(await stack.enter_async_context(_rung(server, rung, cloud)))
        await _take(bench, cloud, ways)
        figures += _figures_of(cloud, ways)
        if cloud.name == "clustered":
            figures += await _waits(bench, cloud)
    with older.connect() as client:
        client.flushall()
    return figures


async def _take(bench: Bench, cloud: Cloud, ways: Sequence[_Way]) -> None:
    """Compare the answers with the truth once, then time calls, round by round."""
    import numpy as np

    all_of_it, part = cloud.truth(), cloud.truth(np.arange(cloud.size) % _KINDS == _KIND)
    for way in ways:
        way.recall = all_of_it.recall(await _answers(way.search, cloud))
        if way.selected is not None:
            way.selected_recall = part.recall(await _answers(way.selected, cloud))
    for _ in range(bench.sizes.rounds):
        for way in ways:
            say(f"    ask {way.name}")
            way.runs.append(await _timed(way.search, cloud, bench.sizes.vector_calls))
            if way.selected is not None:
                way.selected_runs.append(await _timed(way.selected, cloud, bench.sizes.vector_calls))


async def _answers(search: Search, cloud: Cloud) -> list[list[int]]:
    """Ask with all vectors, or with the first ones as long as there is time."""
    ends, found = time.monotonic() + _ANSWERS_S, [await search(0)]
    while len(found) < len(cloud.asked) and time.monotonic() < ends:
        found.append(await search(len(found)))
    return found


async def _timed(search: Search, cloud: Cloud, calls: int) -> Latencies:
    """Time searches: fewer, but a tenth of them, if they are slow."""
    tenth = max(1, calls // 10)
    began_s = time.perf_counter()
    for asked in range(tenth):
        await search(asked % len(cloud.asked))
    in_time = _PASS_S * tenth / (time.perf_counter() - began_s)
    return await latencies(lambda number: search(number % len(cloud.asked)), max(tenth, min(calls, int(in_time))))


# ----------------------------------------------------------------------------------------------------------- the rungs


@contextlib.asynccontextmanager
async def _memory(server: Server, rung: str, words: str) -> AsyncIterator[Memory]:
    settings = load_settings(
        overrides={
            "redis.url": server.url,
            "memory.vector_rung": rung,
            "memory.max_stm_records": 10_000_000,
            "memory.max_bytes": 2**36,
        }
    )
    async with Orchestrator(settings=settings) as orc:
        yield orc.memory(f"bench-{words}")


def record_of(number: int, vector: bytes | None) -> Record:
    """Return the record of a number. One in fifty is of the kind that selective searches ask for."""
    return Record(
        id=f"id-{number:07d}", step=number, kind=f"kind{number % _KINDS}", content={"number": number}, embedding=vector
    )


async def fill(memory: Memory, cloud: Cloud, *, vectors: bool = True) -> float:
    """Store the vectors of a cloud, several calls at once, and return the number stored in a second."""
    starts = iter(range(0, cloud.size, _BATCH))

    async def work() -> None:
        for start in starts:
            numbers = range(start, min(start + _BATCH, cloud.size))
            rows = [record_of(number, cloud.stored[number].tobytes() if vectors else None) for number in numbers]
            await memory.store_many(rows)

    began_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(_AT_ONCE):
            group.create_task(work())
    return cloud.size / (time.perf_counter() - began_s)


@contextlib.asynccontextmanager
async def _rung(server: Server, rung: str, cloud: Cloud) -> AsyncIterator[_Way]:
    async with _memory(server, rung, rung) as memory:
        before = _used(server)
        async with _memory(server, rung, f"{rung}-without") as other:
            await fill(other, cloud, vectors=False)
        without = _used(server) - before
        rate = await fill(memory, cloud)
        with_vectors = _used(server) - before - without
        per_vector = (with_vectors - without) / cloud.size
        name = f"{rung} on Redis {server.version}"
        yield _Way(
            name, partial(_similar, memory, cloud, None), partial(_similar, memory, cloud, _SELECTED), rate, per_vector
        )


async def _similar(memory: Memory, cloud: Cloud, where: MemoryQuery | None, asked: int) -> list[int]:
    found = await memory.similar(cloud.asked[asked].tobytes(), NEIGHBOURS, where=where)
    return [int(each.record.id.removeprefix("id-")) for each in found]


def _used(server: Server) -> int:
    with server.connect() as client:
        return int(client.info("memory")["used_memory_dataset"])


# ---------------------------------------------------------------------------------------------------- the source's loop


@contextlib.asynccontextmanager
async def _source(server: Server, cloud: Cloud) -> AsyncIterator[_Way]:
    """The source's buckets, 8 tables of 12 bits. A hundred stores run at once, because one by one takes minutes."""
    planes = Planes(cloud.stored.shape[1])
    stored, asked = planes.buckets(cloud.stored), planes.buckets(cloud.asked)
    async with Redis.from_url(server.url) as client:
        before, numbers = _used(server), iter(range(cloud.size))

        async def work() -> None:
            for number in numbers:
                await sources.store_vector(client, "ada", str(number), cloud.stored[number].tobytes(), stored[number])

        say(f"    fill {_SOURCE}")
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(_BATCH):
                group.create_task(work())
        rate = cloud.size / (time.perf_counter() - began_s)

        async def search(number: int) -> list[int]:
            query = cloud.asked[number].tolist()
            found = await sources.search_similar_vectors(client, "ada", query, asked[number], NEIGHBOURS)
            return [int(memory_id) for memory_id, _ in found]

        yield _Way(_SOURCE, search, None, rate, (_used(server) - before) / cloud.size)


# --------------------------------------------------------------------------------------------------------- the figures


def _figures_of(cloud: Cloud, ways: Sequence[_Way]) -> Iterator[Figure]:
    source, *ours = ways
    size = f"{cloud.size:,} {cloud.name}"
    for way in (*ours, source):
        rung, what = way.name.split()[0], f"{size}, {way.name}"
        base, slow = ([], []) if way is source else ([source.recall], [run.p50 for run in source.runs])
        goals = _goals(cloud, rung)
        yield figure_of("vectors", f"{what}, recall@10", "", [way.recall], base, goals=goals["recall"])
        yield figure_of("vectors", f"{what}, p50", "ms", [run.p50 for run in way.runs], slow, goals=goals["p50"])
        yield figure_of("vectors", f"{what}, p99", "ms", [run.p99 for run in way.runs], goals=goals["p99"])
        if way.selected is not None:
            selected = f"{what}, 2 % selected"
            yield figure_of("vectors", f"{selected}, recall@10", "", [way.selected_recall], goals=goals["selected"])
            p50 = [run.p50 for run in way.selected_runs]
            yield figure_of("vectors", f"{selected}, p50", "ms", p50, goals=goals["selected p50"])
        yield figure_of("vectors", f"{what}, bytes per vector", "bytes", [way.bytes])
        yield figure_of("vectors", f"{what}, insertions", "vectors/s", [way.rate])


def _goals(cloud: Cloud, rung: str) -> dict[str, tuple[Goal, ...]]:
    small = cloud.size <= _SMALL
    goals: dict[str, tuple[Goal, ...]] = dict.fromkeys(("recall", "p50", "p99", "selected", "selected p50"), ())
    if rung == "vectorset":
        better = Goal("≥ 1 x the source's", 1.0, at_most=False, of_ratio=True)
        faster = Goal("≤ 1/30 x the source's", 1 / 30, at_most=True, of_ratio=True)
        goals["recall"] = (at_least(0.98 if small else 0.97), better)
        goals["p50"] = (at_most(2),) if small else (at_most(2), faster)
        goals["p99"] = (at_most(6),)
        goals["selected"] = (at_least(0.98),)
        goals["selected p50"] = (at_most(6),)
    if rung == "lsh" and small:
        goals["recall"], goals["p50"] = (at_least(0.9),), (at_most(8),)
    return goals


# ---------------------------------------------------------------------------------------------------- waits of others


async def _waits(bench: Bench, cloud: Cloud) -> list[Figure]:
    """Time the GETs of another client, at rest and beside one that adds vectors to those that are stored."""
    rounds: dict[str, list[float]] = {_AT_REST: [], _ADDING: []}
    with running(
        "waits-of-others", ["benchmarks.waits_of_others", bench.server.url], folder=bench.folder, talks=True
    ) as child:
        async with _memory(bench.server, "auto", "vectorset") as memory:
            for _ in range(bench.sizes.rounds):
                say("    ask another client")
                rounds[_AT_REST].append(await _waited(child, bench.sizes.vector_waits_s))
                rounds[_ADDING].append(await _waited_beside(child, bench.sizes.vector_waits_s, memory, cloud))
    cost = [adding - rest for adding, rest in zip(rounds[_ADDING], rounds[_AT_REST], strict=True)]
    what = f"{cloud.size:,} {cloud.name}, GET of another client"
    return [
        *(figure_of("vectors", f"{what} {words}, p99.5", "ms", values) for words, values in rounds.items()),
        figure_of("vectors", f"{what}, cost of adding vectors at p99.5", "ms", cost, goals=(at_most(1),)),
    ]


async def _waited_beside(child: Child, seconds: float, memory: Memory, cloud: Cloud) -> float:
    async def add() -> None:
        number = cloud.size
        while True:
            vector = cloud.stored[number % cloud.size][::-1].tobytes()
            await memory.store(record_of(number, vector))
            number += 1

    adding = asyncio.create_task(add())
    waited = await _waited(child, seconds)
    adding.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await adding
    return waited


async def _waited(child: Child, seconds: float) -> float:
    answer: dict[str, Any] = json.loads(
        await anyio.to_thread.run_sync(partial(child.ask, str(seconds), timeout_s=seconds + 30))
    )
    return float(answer["p99.5"])


_AT_REST, _ADDING = "at rest", "while vectors are added"
