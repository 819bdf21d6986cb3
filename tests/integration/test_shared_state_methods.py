"""What is said of ways to share state, shown: those that others describe beside ours, under fifty writers at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import WatchError

from benchmarks import json_blob
from orchestrator import Orchestrator
from orchestrator.testing.waiting import wait_for
from tests.faultkit.proxy import FaultProxy
from tests.helpers.local_team import local_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import redis

    from orchestrator import Workspace
    from orchestrator.core.settings import Settings
    from tests.faultkit.servers import RedisServer

WRITERS = 50


@pytest.fixture
async def orc(settings: Settings) -> AsyncIterator[Orchestrator]:
    """A client; no team runs."""
    async with Orchestrator(settings=settings) as client:
        yield client


@pytest.fixture
async def ws(orc: Orchestrator) -> AsyncIterator[Workspace]:
    """A workspace that the test may change."""
    async with orc.workspace("101").edit(agent="ada") as workspace:
        yield workspace


@pytest.fixture
async def plain(redis_server: RedisServer) -> AsyncIterator[Any]:
    """A plain client with a connection for each writer."""
    pool = BlockingConnectionPool.from_url(redis_server.url, max_connections=WRITERS, timeout=60)
    async with Redis.from_pool(pool) as client:
        yield client


@pytest.mark.parametrize("way", ["merge", "watch", "blind", "under_lock"])
async def test_ways_to_share(orc: Orchestrator, plain: Any, prefix: str, way: str) -> None:
    """Ours: 50 entries, revision 50, no second try. Others lose some, give up, or try often; a merge keeps all."""
    key = f"{prefix}:{{claims}}:blob"
    tries = await asyncio.gather(*[getattr(json_blob, way)(plain, key, {"by": number}) for number in range(WRITERS)])
    kept = await json_blob.kept(plain, key)
    await plain.unlink(key)
    match way:
        case "merge":
            assert kept == WRITERS
        case "watch":
            assert kept == WRITERS
            assert sum(tries) > WRITERS
        case "blind":
            assert kept < WRITERS
        case "under_lock":
            assert 0 < tries.count(-1) == WRITERS - kept

    workspace = orc.workspace("101")
    async with workspace.edit(agent="ada") as ours:
        answers = await asyncio.gather(*[ours.append("history", {"by": number}) for number in range(WRITERS)])
    shared = await workspace.snapshot()
    assert not any(answer.duplicate for answer in answers)
    assert sorted(entry.value["by"] for entry in shared.logs["history"]) == list(range(WRITERS))
    assert (shared.revision, len(shared.logs["history"])) == (50, 50)


async def test_ten_agents_under_watch(ws: Workspace, plain: Any, prefix: str) -> None:
    """Ten read the same state and write it under WATCH: nine of ten are thrown back. Of ours nobody is."""
    key, aborted = f"{prefix}:{{claims}}:blob", 0
    pipes = [plain.pipeline() for _ in range(10)]
    for pipe in pipes:
        await pipe.watch(key)
        state = json_blob.with_one_more(await pipe.get(key), "x")
        pipe.multi()
        pipe.set(key, state)
    for pipe in pipes:
        try:
            await pipe.execute()
        except WatchError:
            aborted += 1
        await pipe.reset()
    assert (aborted, await json_blob.kept(plain, key)) == (9, 1)
    await plain.unlink(key)

    versions = [answer.version for answer in await asyncio.gather(*[ws.incr("count") for _ in range(10)])]
    assert sorted(versions) == list(range(1, 11))


async def test_own_paths_never_conflict(ws: Workspace) -> None:
    """Fifty agents that each insist on the version of a path of their own: no conflict, whoever writes beside them."""

    async def report(number: int) -> None:
        for version in range(4):
            await ws.set(f"agents.{number}.status", version, if_version=version)

    async with anyio.create_task_group() as group:
        for number in range(WRITERS):
            group.start_soon(report, number)
    paths = (await ws.snapshot()).paths
    assert {(held.version, held.value) for held in paths.values()} == {(4, 3)}
    assert len(paths) == WRITERS


async def test_a_change_costs_the_same_in_a_large_workspace(
    ws: Workspace, plain: Any, prefix: str, redis_client: redis.Redis
) -> None:
    """Bytes over the network for one change do not depend on how much there is; those of a blob do (twin)."""
    key = f"{prefix}:{{claims}}:blob"

    async def cost(change: Any) -> int:
        await change()
        before = _network_bytes(redis_client)
        for _ in range(20):
            await change()
        return _network_bytes(redis_client) - before

    async def ours() -> None:
        await ws.set("path7", "x" * 50)
        await ws.append("log", "y" * 50)

    async def blob() -> None:
        await json_blob.blind(plain, key, "y" * 50)

    small = [await cost(ours), await cost(blob)]
    for start in range(0, 5000, 500):
        await ws.patch({f"path{number}": "x" * 50 for number in range(start, start + 500)})
        await ws.append("log", *["y" * 50] * 500)
    await plain.set(key, json_blob.with_one_more(None, ["y" * 50] * 5000))
    large = [await cost(ours), await cost(blob)]
    assert large[0] < small[0] * 1.1
    assert large[1] > small[1] * 50
    await plain.unlink(key)


def _network_bytes(client: redis.Redis) -> int:
    stats: Any = client.info("stats")
    return int(stats["total_net_input_bytes"]) + int(stats["total_net_output_bytes"])


@pytest.mark.parametrize(
    "each", [20, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(300)])], ids=["some", "many"]
)
async def test_lost_replies_and_repeats_double_nothing(redis_server: RedisServer, prefix: str, each: int) -> None:
    """Fifty writers, every append sent twice at once, one of a hundred answers lost: each entry is there once."""
    async with FaultProxy(redis_server.url) as proxy:
        # A cut fails a hundred calls at once, so one of them may be unlucky several times in a row.
        settings = local_settings(proxy.url, prefix, workspace__max_log=WRITERS * each, redis__command_timeout_s=30)
        async with Orchestrator(settings=settings) as orc, orc.workspace("101").edit(agent="ada") as ws:
            faults = [proxy.fail_reply("EVALSHA", nth=nth) for nth in range(50, 2 * WRITERS * each, 100)]

            async def write(writer: int) -> None:
                for number in range(each):
                    name = f"{writer}/{number}"
                    await asyncio.gather(*[ws.append("log", name, op_id=name) for _ in range(2)])

            async with anyio.create_task_group() as group:
                for writer in range(WRITERS):
                    group.start_soon(write, writer)
            assert sum(fault.fired for fault in faults) >= len(faults) - 1
            seen: list[str] = []
            while len(seen) < WRITERS * each:
                entries = await ws.log("log", after=len(seen), last=500)
                assert entries
                seen += [entry.value for entry in entries]
    assert sorted(seen) == sorted(f"{writer}/{number}" for writer in range(WRITERS) for number in range(each))


async def test_readers_see_whole_appends(ws: Workspace) -> None:
    """Question and answer of one append are both there for whoever reads meanwhile, or neither."""
    seen: set[int] = set()

    async def read() -> None:
        while len(seen) < 20:
            seen.add(len(await ws.log("log", last=1000)))

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        number = 0
        while len(seen) < 20:
            await ws.append("log", f"question {number}", f"answer {number}")
            number += 1
    assert {length % 2 for length in seen} == {0}


@pytest.mark.parametrize("settings", [{"workspace__max_events": 100}], indirect=True)
async def test_events_are_trimmed(ws: Workspace) -> None:
    """The stream of events stays at about its cap; revisions tell that older ones are gone."""
    for number in range(500):
        await ws.set("p", number)
    revisions = [event.revision async for event in ws.events("0-0", block=0)]
    assert revisions == list(range(revisions[0], 501))
    assert 100 <= len(revisions) <= 200


async def test_many_states_are_one_round_trip(redis_server: RedisServer, prefix: str) -> None:
    """The states of fifty agents are all asked for before the first answer has come."""
    names = [f"agent-{number}" for number in range(WRITERS)]
    async with FaultProxy(redis_server.url) as proxy, Orchestrator(settings=local_settings(proxy.url, prefix)) as orc:
        await orc.agents.set_state(names[7], {"status": "busy"})
        asked = len(proxy.commands("HMGET"))
        proxy.blackhole(up=False)
        async with anyio.create_task_group() as group:

            async def read() -> None:
                assert (await orc.agents.states(names, "status"))[names[7]] == {"status": "busy"}

            def all_asked() -> bool:
                return len(proxy.commands("HMGET")) == asked + WRITERS

            group.start_soon(read)
            await wait_for(all_asked, "all questions")
            proxy.heal()
