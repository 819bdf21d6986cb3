"""A ring is a hint: what nobody rang for is found at the next sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from orchestrator import Agent
from orchestrator.testing.waiting import wait_for
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faultkit.servers import RedisServer
    from tests.helpers.team import Team


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
        assert await handle.result(TIMEOUT_S) == "done"


async def test_rings_that_were_lost_while_the_supervisor_was_cut_off(make_team: Callable[..., Team]) -> None:
    """It looks at everything when it is back, long before the next sweep; what it missed is not in the stream."""
    async with make_team(sweep_s=60.0, leader_lease_s=60.0) as team:
        await team.start_supervisor()
        worker = await team.start_worker()
        async with team.open_client() as orc:
            assert await (await orc.submit("echo", {"n": 1})).result(timeout=4) == 1
            team.supervisor.close_port()
            team.supervisor.cut()
            handle = await orc.submit("echo", {"n": 2})
            assert team.direct.xtrim(team.keys.doorbell, maxlen=0, approximate=False)
            team.supervisor.heal()
            assert await handle.result(timeout=4) == 2
        await wait_for(lambda: not team.direct.xlen(team.keys.inbox("scribe")), "an empty inbox")
        await worker.drain()
