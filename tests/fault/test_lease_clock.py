"""A handler whose worker is cut off learns by its own clock that its lease has lapsed, without asking Redis."""

from __future__ import annotations

import time
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, LeaseLapsed, TaskContext
from orchestrator.core.ids import new_worker_id
from orchestrator.services import open_services
from orchestrator.testing.waiting import wait_for
from orchestrator.workers.runtime.worker import Worker
from tests.faultkit.proxy import ThreadedProxy
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team
from tests.helpers.team import make_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.faultkit.proxy import FaultProxy
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam

LEASE_S = 1.0


@pytest.fixture
async def team(redis_server: RedisServer, prefix: str) -> AsyncIterator[LocalTeam]:
    """A team whose workers may be cut off."""
    async with run_local_team(local_settings(redis_server.url, prefix)) as team:
        yield team


@pytest.fixture
async def proxy(redis_server: RedisServer) -> AsyncIterator[FaultProxy]:
    """What stands between a worker and the server."""
    stack = ExitStack()
    yield stack.enter_context(ThreadedProxy(redis_server.url))
    await anyio.to_thread.run_sync(stack.close)


@asynccontextmanager
async def working(team: LocalTeam, proxy: FaultProxy, agent: Agent) -> AsyncIterator[None]:
    """Run a worker behind the proxy during the block."""
    settings = make_settings(proxy.url, team.settings.prefix, heartbeat_s=0.3)
    async with open_services(settings, name="worker") as services, anyio.create_task_group() as group:
        worker = Worker(services, [agent], worker=new_worker_id())
        group.start_soon(worker.run)
        yield
        proxy.heal()
        worker.stop()


def pending(team: LocalTeam, agent: str) -> tuple[str, ...]:
    """The command that lists who holds an entry of the agent."""
    return ("XPENDING", team.services.keys.inbox(agent), "workers", "-", "+", "10")


async def test_block_ends_when_the_lease_has_lapsed(team: LocalTeam, proxy: FaultProxy) -> None:
    """Cut off, the block is cancelled before the entry is free to take; the task goes back once Redis answers."""
    agent, learned, attempts = Agent("ed", lease=LEASE_S), list[float](), list[int]()

    @agent.skill
    async def work(ctx: TaskContext) -> bool:
        attempts.append(ctx.attempt)
        if len(attempts) > 1:
            return ctx.lease_lost
        try:
            async with ctx.while_leased():
                proxy.blackhole()
                await anyio.sleep_forever()
        except LeaseLapsed:
            ((_, _, idle_ms, _),) = await team.services.store.execute(*pending(team, "ed"))
            learned.append(idle_ms / 1000)
            assert ctx.lease_lost
            assert not ctx.cancelled
            raise
        return True

    async with working(team, proxy, agent):
        handle = await team.orc.submit("work")
        await wait_for(lambda: bool(learned), "the handler learns of it", timeout_s=TIMEOUT_S)
        proxy.heal()
        assert await handle.result(2 * TIMEOUT_S) is False
    # The lease counts from before the read that took the entry, which began up to a fifth of a lease earlier.
    assert LEASE_S * 0.7 <= learned[0] <= LEASE_S + 0.1
    assert attempts == [1, 1]


async def test_thread_learns_it_too(team: LocalTeam, proxy: FaultProxy) -> None:
    """A handler in a thread reads the flag, and decides by itself."""
    agent, seen = Agent("ed", lease=LEASE_S), list[bool]()

    @agent.skill(max_attempts=1)
    def work(ctx: TaskContext) -> None:
        seen.append(ctx.lease_lost)
        proxy.blackhole()
        until_s = time.monotonic() + TIMEOUT_S
        while not ctx.lease_lost and time.monotonic() < until_s:
            time.sleep(0.01)
        seen.append(ctx.lease_lost)
        proxy.heal()

    async with working(team, proxy, agent):
        handle = await team.orc.submit("work")
        await handle.result(2 * TIMEOUT_S)
    assert seen == [False, True]


async def test_lease_that_is_renewed_lasts(team: LocalTeam, proxy: FaultProxy) -> None:
    """Twin: while Redis answers, a block may take longer than a lease."""
    agent = Agent("ed", lease=LEASE_S)

    @agent.skill
    async def work(ctx: TaskContext) -> bool:
        async with ctx.while_leased():
            await anyio.sleep(LEASE_S * 1.3)
        return ctx.lease_lost

    async with working(team, proxy, agent):
        assert await (await team.orc.submit("work")).result(2 * TIMEOUT_S) is False
