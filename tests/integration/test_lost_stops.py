"""A STOP that is published is lost for whoever does not listen at that moment; ours reaches them all the same."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as LostConnection

from orchestrator import Agent
from orchestrator.tasks.model import TaskState
from orchestrator.testing.waiting import wait_for
from tests.faultkit.proxy import FaultProxy
from tests.faultkit.servers import RedisServer
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.helpers.local_team import LocalTeam

CHANNEL = "stops"
WAYS = ["listening", "busy", "cut off", "starting"]
CHATTER = b"x" * 65_536


class Listener:
    """Hears what is published, while it listens."""

    def __init__(self, url: str) -> None:
        self._client: Any = Redis.from_url(url)
        self._ears: Any = self._client.pubsub()

    async def begin(self) -> None:
        """Subscribe, as at a start and after a lost connection."""
        await self._ears.subscribe(CHANNEL)
        await self._ears.get_message(timeout=1)

    async def stops(self) -> int:
        """Read what has come, over a new connection if the old one has gone; how often it was told to stop."""
        heard = 0
        while True:
            try:
                message = await self._ears.get_message(ignore_subscribe_messages=True, timeout=0.2)
            except LostConnection:
                continue  # the next read subscribes again
            if message is None and self._ears.connection.is_connected:
                return heard
            heard += message is not None and message["data"] == b"STOP"

    async def close(self) -> None:
        """Leave."""
        await self._ears.aclose()
        await self._client.aclose()


@pytest.fixture
async def proxy(redis_server: RedisServer) -> AsyncIterator[FaultProxy]:
    """A way to the server that can be closed."""
    async with FaultProxy(redis_server.url) as opened:
        yield opened


async def heard_of_published(way: str, proxy: FaultProxy, redis_server: RedisServer) -> int:
    """How often a listener in such a state hears of a STOP that is published once."""
    listener = Listener(proxy.url)
    async with AsyncExitStack() as stack:
        sender: Any = await stack.enter_async_context(Redis.from_url(redis_server.url))
        stack.push_async_callback(listener.close)
        if way != "starting":
            await listener.begin()
        if way == "busy":
            # It reads nothing while it works. Others publish on, until the server drops who does not read.
            await sender.config_set("client-output-buffer-limit", "pubsub 262144 262144 1")
            while await sender.publish(CHANNEL, CHATTER):
                await anyio.lowlevel.checkpoint()
        elif way == "cut off":
            proxy.refuse()
            proxy.cut()

            async def unheard() -> bool:
                return not (await sender.pubsub_numsub(CHANNEL))[0][1]

            await wait_for(unheard, "the server to notice")
        assert await sender.publish(CHANNEL, "STOP") == (way == "listening")
        proxy.heal()
        if way == "starting":
            await listener.begin()
        return await listener.stops()


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server whose settings the test may change."""
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize("way", WAYS)
async def test_published_stops_are_lost(way: str, own_server: RedisServer) -> None:
    """Who listens hears it (the twin). Who works, is cut off or just starts does not, and never will."""
    async with FaultProxy(own_server.url) as proxy:
        assert await heard_of_published(way, proxy, own_server) == (way == "listening")


@pytest.mark.parametrize("way", WAYS)
async def test_a_stop_reaches_who_does_not_listen(
    way: str, proxy: FaultProxy, redis_server: RedisServer, prefix: str
) -> None:
    """Ours is active: whatever a worker was about when it was given, it starts nothing any more, and says so."""
    begun: list[int] = []
    gate = anyio.Event()
    agent = Agent("ed", concurrency=5)

    @agent.skill
    async def work(number: int) -> None:
        begun.append(number)
        await gate.wait()

    async with run_local_team(local_settings(redis_server.url, prefix)) as team:
        worker = None if way == "starting" else await team.work(agent, redis__url=proxy.url)
        if way == "busy":
            await team.orc.submit("work", {"number": 0})
            await wait_for(lambda: begun == [0], "it is busy")
        elif way == "cut off":
            proxy.refuse()
            proxy.cut()
        stop = await team.orc.admin.stop(reason="enough", actor="ann")
        waiting = await team.orc.submit("work", {"number": 1})
        if way == "cut off":
            await anyio.sleep(0.2)
            proxy.heal()
        worker = worker or await team.work(agent)
        gate.set()
        await has_obeyed(team, stop.id, worker.id)
        assert begun == ([0] if way == "busy" else [])
        assert (await waiting.status()).state is TaskState.READY
        await team.orc.admin.start()
        await waiting.result(TIMEOUT_S)


async def has_obeyed(team: LocalTeam, stop: str, worker: str) -> None:
    """Wait until a worker has acknowledged that it does not work any more."""

    async def done() -> bool:
        said = await team.services.store.execute("HGET", team.services.keys.receipts(stop), worker)
        return said is not None and said.split(b" ")[1] == b"done"

    await wait_for(done, "the worker to obey", TIMEOUT_S)
