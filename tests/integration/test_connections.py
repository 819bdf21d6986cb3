"""Connections of a worker process: three at rest, whatever it hosts, and two more while its handlers wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from orchestrator import Agent, TaskContext
from tests.helpers.connections import connection_names
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    import redis

    from tests.helpers.local_team import LocalTeam


OF_OTHERS = {"test:control", "test:doorbell", "heartbeat"}


async def test_connections_of_a_worker(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Handlers that wait for children, follow output and wait for locks share two connections beyond those at rest."""
    agents, gate = [Agent(name, concurrency=20) for name in ("ada", "bob", "cy")], anyio.Event()

    async def parent(ctx: TaskContext, number: int) -> int:
        async with ctx.locks.within("pool").hold(f"n{number % 2}", wait=60):
            child = await ctx.submit("leaf")
            if number % 2:
                return int(await child.result())
            return len([chunk async for chunk in child.output()])

    async def leaf(ctx: TaskContext) -> int:
        await gate.wait()
        await ctx.emit("x")
        return 1

    for agent in agents:
        agent.skill(parent)
        agent.skill(leaf)
    before = connection_names(redis_client)
    await team.work(*agents)

    def opened() -> list[str]:
        """Return the connections of the worker; a busy machine also opens one for heartbeats."""
        names = connection_names(redis_client)
        for name in before:
            if name in names:
                names.remove(name)
        return [name for name in names if not name.startswith("client") and name not in OF_OTHERS]

    await wait_for(lambda: len(opened()) == 3, lambda: f"three connections: {opened()}")
    handles = [await team.orc.submit("parent", {"number": number}) for number in range(20)]

    async def all_wait() -> bool:
        found = await team.services.store.execute("PUBSUB", "SHARDCHANNELS", f"{team.services.keys.prefix}*:wake:*")
        return len(found) == 18

    await wait_for(all_wait, "18 handlers to wait for two locks")
    await wait_for(lambda: len(opened()) == 5, lambda: f"two more connections: {opened()}")
    gate.set()
    assert [await handle.result(20) for handle in handles] == [1] * 20
