"""Output over a bad line: every chunk arrives once and in order, whoever loses the connection."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, TaskContext
from orchestrator.client.client import Orchestrator
from orchestrator.core.errors import ServerUnavailable
from orchestrator.core.ids import new_worker_id
from orchestrator.services import open_services
from orchestrator.store.script_files import all_scripts
from orchestrator.workers.runtime.emitter import WAITING_BYTES
from orchestrator.workers.runtime.worker import Worker
from tests.faultkit.commands import script
from tests.faultkit.proxy import ThreadedProxy
from tests.faultkit.servers import RedisServer
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from tests.faultkit.proxy import FaultProxy
    from tests.helpers.local_team import LocalTeam

CHUNKS = 150
MIB = 1_048_576
TIMEOUT_S = 20.0
EMIT = script(all_scripts()["tasks/emit"].sha)


@pytest.fixture
def proxy(redis_server: RedisServer) -> Iterator[FaultProxy]:
    """The line of the one actor that is to suffer."""
    with ThreadedProxy(redis_server.url) as proxy:
        yield proxy


@pytest.fixture
def settings(redis_server: RedisServer, prefix: str) -> Settings:
    """Settings of those whose line is good."""
    return local_settings(redis_server.url, prefix)


@pytest.fixture
async def team(settings: Settings) -> AsyncIterator[LocalTeam]:
    """A supervisor and a client with good lines."""
    async with run_local_team(settings) as running:
        yield running


def counter() -> Agent:
    """An agent that counts aloud, a number every few milliseconds."""
    agent = Agent("counter", lease=60)

    @agent.skill
    async def count(ctx: TaskContext, to: int) -> None:
        for number in range(1, to + 1):
            await ctx.emit(number)
            await ctx.progress(number, to)
            await anyio.sleep(0.003)

    return agent


async def numbers(handle: TaskHandle[Any]) -> list[int]:
    """What was counted, up to the end."""
    with anyio.fail_after(TIMEOUT_S):
        return [chunk.data async for chunk in handle.output()]


@asynccontextmanager
async def again_and_again(harm: Callable[[], object], *, every_s: float = 0.04) -> AsyncIterator[None]:
    """Do harm every now and then, in a thread, beside what the block does."""

    async def run() -> None:
        while True:
            await anyio.sleep(every_s)
            await anyio.to_thread.run_sync(harm)

    async with anyio.create_task_group() as background:
        background.start_soon(run)
        yield
        background.cancel_scope.cancel()


@asynccontextmanager
async def working_behind(proxy: FaultProxy, settings: Settings, agent: Agent, **changed: Any) -> AsyncIterator[None]:
    """Run a worker whose line is bad."""
    theirs = local_settings(proxy.url, settings.prefix, **changed)
    async with open_services(theirs, name="worker") as services, anyio.create_task_group() as group:
        worker = Worker(services, [agent], worker=new_worker_id())
        group.start_soon(worker.run)
        try:
            yield
        finally:
            proxy.heal()
            worker.stop()
            worker.stop()


async def test_a_reader_whose_connections_are_cut(team: LocalTeam, proxy: FaultProxy) -> None:
    """Cut and reset again and again: the reader goes on where it was; no chunk is lost and none seen twice."""
    await team.work(counter())
    ways = itertools.cycle([False, True])
    async with Orchestrator(settings=local_settings(proxy.url, team.settings.prefix)) as client:
        id_ = (await team.orc.submit("count", {"to": CHUNKS})).id
        async with again_and_again(lambda: proxy.cut(reset=next(ways))):
            assert await numbers(client.task(id_)) == list(range(1, CHUNKS + 1))
    assert proxy.applied["cut"] >= 5, "too few connections were cut for a test"


@pytest.mark.parametrize("command", ["SSUBSCRIBE", "PING", "XRANGE", "EVALSHA"])
async def test_a_reader_whose_line_goes_silent(team: LocalTeam, proxy: FaultProxy, command: str) -> None:
    """A connection that stays open and carries nothing more is found out; until then hints are not missed for long."""
    await team.work(counter())
    theirs = local_settings(proxy.url, team.settings.prefix, redis__command_timeout_s=0.2)
    async with Orchestrator(settings=theirs) as client:
        fault = proxy.fail_reply(command, how="swallow")
        id_ = (await team.orc.submit("count", {"to": CHUNKS})).id
        assert await numbers(client.task(id_)) == list(range(1, CHUNKS + 1))
    assert fault.fired == 1


async def test_an_emitter_whose_connections_are_cut(team: LocalTeam, proxy: FaultProxy) -> None:
    """A call whose outcome is unknown is sent again and adds nothing twice."""
    async with working_behind(proxy, team.settings, counter()):
        handle = await team.orc.submit("count", {"to": CHUNKS})
        async with again_and_again(proxy.cut):
            assert await numbers(handle) == list(range(1, CHUNKS + 1))
    assert proxy.applied["cut"] >= 5, "too few connections were cut for a test"


@pytest.mark.parametrize("fault", ["reply lost", "sent twice"])
async def test_every_emit_runs_twice(team: LocalTeam, proxy: FaultProxy, fault: str) -> None:
    """Each answer is lost once, or each call arrives twice: each chunk is there once."""
    if fault == "reply lost":
        felt = proxy.fail_reply(EMIT, nth="first-of-each")
    else:
        felt = proxy.double(EMIT, nth="every", answer="second")
    async with working_behind(proxy, team.settings, counter()):
        assert await numbers(await team.orc.submit("count", {"to": 30})) == list(range(1, 31))
    assert felt.fired >= 60


async def test_an_outage_is_waited_for_and_then_told(team: LocalTeam, proxy: FaultProxy) -> None:
    """Emits wait for a short outage and raise in a long one; what was not stored shows as a gap in the numbers."""
    agent, told = Agent("patient", lease=60), anyio.Event()
    again: list[anyio.Event] = [anyio.Event(), anyio.Event()]

    @agent.skill
    async def talk(ctx: TaskContext) -> None:
        await ctx.emit("before")
        await again[0].wait()
        await ctx.emit("after a short one")
        await again[1].wait()
        with pytest.raises(ServerUnavailable):
            await ctx.emit("in a long one")
        told.set()
        await anyio.to_thread.run_sync(proxy.heal)
        await ctx.emit("after it")

    def break_line() -> None:
        proxy.refuse()
        proxy.cut()

    async with working_behind(proxy, team.settings, agent, redis__command_timeout_s=0.6):
        handle = await team.orc.submit("talk")
        seen: list[tuple[int, str]] = []
        with anyio.fail_after(TIMEOUT_S):
            async for chunk in handle.output():
                seen.append((chunk.number, chunk.data))
                if len(seen) == 1:
                    await anyio.to_thread.run_sync(break_line)
                    again[0].set()
                    await wait_for(lambda: proxy.applied["refuse"], "a connection that was refused")
                    await anyio.to_thread.run_sync(proxy.heal)
                elif len(seen) == 2:
                    await anyio.to_thread.run_sync(break_line)
                    again[1].set()
        assert told.is_set()
    assert seen == [(1, "before"), (2, "after a short one"), (4, "after it")]


async def test_a_pause_that_fills_the_emitter(team: LocalTeam, proxy: FaultProxy) -> None:
    """More bytes wait than the emitter takes while the line is silent; when it carries again, every handler goes on."""
    agent, begun, silent = Agent("loud", lease=60, concurrency=WAITING_BYTES // MIB + 8), list[str](), anyio.Event()

    @agent.skill
    async def shout(ctx: TaskContext) -> None:
        begun.append(ctx.task_id)
        await silent.wait()
        await ctx.emit("x" * (MIB - 2))

    async with working_behind(proxy, team.settings, agent, output__max_chunk_bytes=MIB):
        handles = [await team.orc.submit("shout") for _ in range(agent.concurrency)]
        await wait_for(lambda: len(begun) == agent.concurrency, "all handlers")
        await anyio.to_thread.run_sync(proxy.blackhole)
        silent.set()
        await anyio.wait_all_tasks_blocked()
        assert not any([(await handle.status()).state.final for handle in handles])
        await anyio.to_thread.run_sync(proxy.heal)
        with anyio.fail_after(TIMEOUT_S):
            for handle in handles:
                await handle.result()


async def test_redis_is_killed_and_restarted(prefix: str) -> None:
    """Readers and emitters go on where they were when the server comes back with its data."""
    with RedisServer(options={"appendonly": "yes", "appendfsync": "always"}) as server:
        async with run_local_team(local_settings(server.url, prefix)) as team:
            await team.work(counter())
            handle = await team.orc.submit("count", {"to": CHUNKS})
            seen: list[int] = []
            with anyio.fail_after(TIMEOUT_S):
                async for chunk in handle.output():
                    seen.append(chunk.data)
                    if len(seen) in {20, 60}:
                        await anyio.to_thread.run_sync(server.restart)
            assert seen == list(range(1, CHUNKS + 1))
