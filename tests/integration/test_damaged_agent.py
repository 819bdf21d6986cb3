"""Another type in the keys of one agent: its worker goes on for its other agents."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from orchestrator import Agent, TaskState
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    import redis

    from orchestrator import TaskHandle
    from tests.helpers.local_team import LocalTeam


async def test_another_type_of_an_inbox_costs_other_agents_no_lease(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A worker renews the leases of its other agents, and sends its heartbeats, while one agent's inbox is damaged."""
    opened = anyio.Event()
    agents = [Agent("clerk", lease=15.0), Agent("scribe", lease=15.0)]

    async def hold() -> None:
        await opened.wait()

    for agent in agents:
        agent.skill(hold)
    worker = await team.work(*agents, worker__heartbeat_s=0.1)
    keys = team.services.keys
    handles = [await team.orc.submit("hold", agent=agent.name) for agent in agents]
    for handle in handles:
        await wait_for(partial(is_running, handle), "both to run")
    redis_client.delete(keys.inbox("clerk"))
    redis_client.set(keys.inbox("clerk"), "x", ex=60)
    damaged_ms = server_ms(redis_client)

    def renewed() -> bool:
        asked_ms = server_ms(redis_client)
        pending: Any = redis_client.xpending_range(keys.inbox("scribe"), "workers", "-", "+", 1)
        beat_ms: Any = redis_client.zscore(keys.workers, worker.id)
        return bool(min(asked_ms - pending[0]["time_since_delivered"], beat_ms) > damaged_ms + 1)

    await wait_for(renewed, "a heartbeat and a renewal after the damage")
    redis_client.delete(keys.inbox("clerk"))
    opened.set()
    await handles[1].result(timeout=15)


async def is_running(handle: TaskHandle[Any]) -> bool:
    """Whether an attempt of the task runs."""
    return (await handle.info()).state is TaskState.RUNNING


def server_ms(client: redis.Redis) -> int:
    """The server's time."""
    seconds, micros = client.time()
    return int(seconds) * 1000 + int(micros) // 1000
