"""The code forms of the source documents have the faults that the requirements page names, and ours have not."""

from __future__ import annotations

import contextlib
import json
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import DataError

from benchmarks import sources
from benchmarks.clouds import NEIGHBOURS, Planes, clustered
from benchmarks.harness import Bench
from benchmarks.measures import vectors
from benchmarks.server import Server
from orchestrator import Orchestrator
from orchestrator.core.event_loop import run_loop
from orchestrator.memory.model import MemoryQuery, Record
from orchestrator.testing.temporary_server import temporary_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

STATE = {"level": 1.5, "position_x": 3.0, "position_y": 4.0, "agent_type": "t"}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server of this file alone, because the sources' keys have no namespace."""
    with temporary_server() as url:
        yield url


@pytest.fixture
async def plain(url: str) -> AsyncIterator[Any]:
    """A plain client on an empty server."""
    async with Redis.from_url(url) as client:
        await client.flushall()
        yield client


@pytest.fixture
async def orc(url: str) -> AsyncIterator[Orchestrator]:
    """A client of ours on the same server."""
    async with Orchestrator(url) as client:
        yield client


async def test_positions(plain: Any, orc: Orchestrator) -> None:
    """Of ten states the source's position -1 is the oldest; ours is the one before the newest (B20)."""
    memory = orc.memory("ada")
    for step in range(10):
        await sources.store_agent_state(plain, "ada", {**STATE, "level": step}, "sim", step)
        await memory.store(Record(step=step, kind="state", content={"level": step}))
    theirs = [await sources.state_at(plain, "ada", position) for position in (0, -1, -3)]
    assert [int(state[b"level"]) for state in theirs if state is not None] == [9, 0, 2]
    ours = [await memory.at(position) for position in (0, -1, -3)]
    assert [record.content["level"] for record in ours if record is not None] == [9, 8, 6]


async def test_trimming(plain: Any) -> None:
    """The source trims its index by position, and leaves every state and the whole timeline (B21)."""
    for step in range(sources.RELATIVE_SIZE + 5):
        await sources.store_agent_state(plain, "ada", dict(STATE), "sim", step)
    assert await plain.zcard("agent:ada:state:relative_index") == sources.RELATIVE_SIZE
    assert await plain.zcard("agent:ada:state:timeline") == sources.RELATIVE_SIZE + 5
    assert len(await plain.keys("agent:ada:state:ada-*")) == sources.RELATIVE_SIZE + 5
    assert await plain.ttl("agent:ada:state:ada-0") == -1


async def test_combined_queries(plain: Any, orc: Orchestrator) -> None:
    """The source's query writes shared keys that stay, and that a second query in between spoils (B23); ours none."""
    memory = orc.memory("ada")
    for step in range(20):
        kind = f"k{step % 2}"
        await sources.store_memory(
            plain, "ada", f"m{step}", json.dumps({"step": step}), step=step, kind=kind, action="a", importance=step
        )
        await memory.store(Record(step=step, kind=kind, content={"step": step}, importance=step))
    found = await sources.important_of_kind(plain, "ada", since=0, until=10, kind="k0", least=3)
    assert sorted(record["step"] for record in found) == [4, 6, 8, 10]
    assert sorted(await plain.keys("temp:*")) == [
        b"temp:final_result",
        b"temp:importance",
        b"temp:result",
        b"temp:time_range",
    ]
    query = MemoryQuery(since=0, until=10, kinds=("k0",), min_importance=3, order="old")
    before = set(await plain.keys("*"))
    ours = await memory.query(query)
    assert [record.step for record in ours] == [4, 6, 8, 10]
    assert set(await plain.keys("*")) == before


async def test_states(plain: Any, orc: Orchestrator) -> None:
    """The source changes the caller's dict, refuses JSON values, and keeps fields of an earlier write (B30, B32)."""
    state = dict(STATE)
    await sources.store_agent_state(plain, "ada", state, "sim", 1)
    assert set(state) - set(STATE) == {"state_id", "agent_id", "simulation_id", "step_number", "stored_at"}
    with pytest.raises(DataError):
        await sources.store_agent_state(plain, "ada", {"awake": True}, "sim", 2)
    await sources.store_agent_state(plain, "ada", {"mood": "good"}, "sim", 1)
    assert (await plain.hget("agent:ada:state:ada-1", "level"), await plain.exists("spatial:3:4:states")) == (b"1.5", 1)
    memory = orc.memory("ada")
    content = {"awake": True, "nothing": None, "deep": [{"a": 1}]}
    await memory.store(Record(id="1", step=1, kind="state", content=STATE))
    await memory.store(Record(id="1", step=1, kind="state", content=content))
    (record,) = await memory.get("1")
    assert record is not None
    assert record.content == content


async def test_history(plain: Any, orc: Orchestrator) -> None:
    """The source's history is newest first although it is said to be chronological, and costs ten trips (B33)."""
    memory = orc.memory("ada")
    for step in range(6):
        await sources.store_agent_state(plain, "ada", {**STATE, "level": step}, "sim", step)
        await memory.store(Record(step=step, kind="state", content={"level": step}))
    before = (await plain.info("stats"))["total_commands_processed"]
    # The positions themselves are wrong (B20), so that only the first state is the right one.
    assert [int(state[b"level"]) for state in await sources.state_history(plain, "ada")] == [5, 0, 1, 2, 3]
    assert (await plain.info("stats"))["total_commands_processed"] - before - 1 == 10
    assert [record.content["level"] for record in await memory.history(5)] == [1, 2, 3, 4, 5]


async def test_chats(plain: Any, orc: Orchestrator) -> None:
    """A repeated append of the source is stored twice (B44); ours once. Both give the messages back in order."""
    message, chat = {"role": "user", "content": "hello"}, orc.chat("s")
    for _ in range(2):
        await sources.append_message(plain, "s", message, cap=10)
        await chat.append([message], op_id="m1")
    assert (await sources.load_session(plain, "s"))[1] == [message, message]
    assert (await chat.hydrate()).data == [message]


def test_measures_run(url: str) -> None:
    """The calls that the benchmarks time run, and return what is expected of them."""
    from benchmarks.measures import chat, memory

    bench: Any = SimpleNamespace(server=SimpleNamespace(url=url))

    async def run(opened: Any) -> None:
        async with Redis.from_url(url) as client:
            await client.flushall()
        async with opened(bench) as call:
            for number in range(3):
                await (call[0] if isinstance(call, tuple) else call)(number)

    for opened in (
        *chat._READS_BY_NAME.values(),
        *[way for name, way in chat._APPENDS_BY_NAME.items() if name != chat._AFTER_MANY],
        *memory._STORES_BY_NAME.values(),
        *memory._POSITIONS.values(),
    ):
        run_loop(partial(run, opened))


async def test_vectors(plain: Any, orc: Orchestrator) -> None:
    """The source's buckets, 8 tables of 12 bits, miss most of the nearest vectors; ours return them."""
    cloud = clustered(200, asked=8)
    planes, truth, memory = Planes(384), cloud.truth(), orc.memory("ada")
    stored, asked = planes.buckets(cloud.stored), planes.buckets(cloud.asked)
    for number, vector in enumerate(cloud.stored):
        await sources.store_vector(plain, "ada", str(number), vector.tobytes(), stored[number])
    await vectors.fill(memory, cloud)
    theirs, ours = [], []
    for vector, buckets in zip(cloud.asked, asked, strict=True):
        found = await sources.search_similar_vectors(plain, "ada", vector.tolist(), buckets, NEIGHBOURS)
        theirs.append([int(memory_id) for memory_id, _ in found])
        for memory_id, score in found:
            assert score == pytest.approx(float(vector @ cloud.stored[int(memory_id)]), abs=1e-6)
        similar = await memory.similar(vector.tobytes(), NEIGHBOURS)
        ours.append([int(each.record.id.removeprefix("id-")) for each in similar])
    assert truth.recall(theirs) < 0.6
    assert truth.recall(ours) > 0.98


def test_measure_of_vectors_runs(url: str, tmp_path: Path) -> None:
    """Each rung has its figures, and finds what is nearest; the source's loop finds less."""
    sizes = SimpleNamespace(rounds=1, vector_calls=4, vector_waits_s=0.05)
    with Server(url, "", 0).connect() as meter, contextlib.ExitStack() as stack:
        server = Server(url, meter.info("server")["redis_version"], 0)
        bench: Any = Bench(server, meter, sizes, tmp_path)  # type: ignore[arg-type]
        bench.clean()
        older = vectors._older_server(bench, stack)
        figures = {
            figure.name: figure for figure in run_loop(partial(vectors._figures, bench, older, clustered(200, asked=8)))
        }
    recall = {name: figure.value for name, figure in figures.items() if "recall" in name}
    assert recall.pop("200 clustered, the source's loop, recall@10") < 0.6
    assert {name.split()[2] for name in recall} >= {"lsh", "exact"}
    assert min(recall.values()) > 0.98
    assert figures["200 clustered, GET of another client at rest, p99.5"].value > 0
    assert all(figure.value > 0 for name, figure in figures.items() if "p50" in name)
