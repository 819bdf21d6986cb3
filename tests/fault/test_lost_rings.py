"""A ring is a hint: what nobody rang for is found at the next sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from tests.helpers.local_team import PATIENCE_S, local_settings, run_local_team
from workers import Agent

if TYPE_CHECKING:
    from orchestrator.testing.servers import RedisServer


async def test_a_task_that_nobody_rang_for_is_found_at_the_next_sweep(redis_server: RedisServer, prefix: str) -> None:
    """A task is put into its queue without a ring, as by a script that was torn in the middle; it runs all the same."""
    agent = Agent("quiet")

    @agent.skill
    async def work() -> str:
        return "done"

    async with run_local_team(local_settings(redis_server.url, prefix, supervisor__sweep_s=0.3)) as team:
        await team.work(agent)
        handle = await team.orc.submit("work", delay=600)
        store, keys = team.services.store, team.services.keys
        before = -1
        # Until nobody rings any more: a worker that has just come tells the registry of itself more than once.
        while before != (before := await store.execute("XLEN", keys.doorbell)):  # noqa: ASYNC110 - in Redis
            await anyio.sleep(0.5)
        await store.pipeline(
            [
                ("HSET", keys.task(handle.id), "state", "ready"),
                ("ZADD", keys.queue("skill:work"), "1", handle.id),
                ("SADD", keys.queues, "skill:work"),
                ("ZREM", keys.scheduled, handle.id),
            ]
        )
        assert await handle.result(PATIENCE_S) == "done"
