"""Views of a pool as values: what they hold, and how much they read of a large pool."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from orchestrator import Agent
from orchestrator.agents import scripts as agents
from orchestrator.agents.model import AgentSpec
from orchestrator.core.errors import InvalidInput, NotFound
from orchestrator.views.active_commands import read_stops
from orchestrator.views.agents import list_agents, read_agent
from orchestrator.views.limits import list_limits
from orchestrator.views.queues import SERVING, list_queues
from orchestrator.views.status import read_status
from orchestrator.views.workers import find_worker, list_workers, read_worker
from tests.helpers.counting import CommandCounter

if TYPE_CHECKING:
    import redis

    from orchestrator.services import Services
    from tests.helpers.local_team import LocalTeam

MANY = 130


async def _register(services: Services, count: int, skill: str = "write") -> None:
    """Register agents that share a skill, each with one worker."""
    calls = [
        agents.register(
            services.keys,
            worker=f"host:{number}:abc",
            spec=AgentSpec(f"agent-{number:03}", frozenset({skill})),
            slots=2,
            backlog=0,
            about={"host": "host", "pid": number, "version": "1", "started_ms": int(time.time() * 1000)},
            alive_s=30,
        )
        for number in range(count)
    ]
    for call in calls:
        await services.store.call(call)


async def test_status_has_some_of_many(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A status reads no more agents and workers than it returns, and says how many there are."""
    await _register(team.services, MANY)
    counter = CommandCounter(redis_client)
    found = await read_status(team.services, limit=7)
    read = counter.calls()
    assert (len(found.agents), len(found.workers), found.totals.agents, found.totals.workers) == (7, 7, MANY, MANY)
    assert [agent.name for agent in found.agents] == sorted(agent.name for agent in found.agents)
    assert read["hkeys"] == 7
    assert found.supervisor is not None
    assert found.server.version[0].isdigit()


async def test_lists_have_a_limit(team: LocalTeam) -> None:
    """Agents and workers: those with the latest heartbeats, and the total."""
    await _register(team.services, 12)
    listed, workers = await list_agents(team.services, limit=5), await list_workers(team.services, limit=5)
    assert [view.agent.name for view in listed.agents] == [f"agent-{number:03}" for number in range(7, 12)]
    assert (listed.total, workers.total, len(workers.workers)) == (12, 12, 5)
    assert {view.worker.id for view in workers.workers} == {f"host:{number}:abc" for number in range(7, 12)}
    everyone = await list_agents(team.services, within_s=30)
    assert (len(everyone.agents), everyone.total) == (12, 12)
    assert (await list_agents(team.services, within_s=0)).agents == ()


async def test_one_agent_is_read_alone(team: LocalTeam, redis_client: redis.Redis) -> None:
    """One agent is read without the others; an unknown one is answered with some names."""
    await _register(team.services, MANY)
    counter = CommandCounter(redis_client)
    view = await read_agent(team.services, "agent-007")
    assert counter.calls()["hkeys"] == 1
    assert (view.agent.slots, view.agent.workers, view.active_commands) == (2, ("host:7:abc",), ())
    with pytest.raises(NotFound, match=r"known are: agent-\d+, .*, \.\.\.$") as unknown:
        await read_agent(team.services, "nobody")
    assert str(unknown.value).count("agent-") == 20


async def test_a_worker_by_the_beginning_of_its_id(team: LocalTeam) -> None:
    """An id, or a beginning that one worker has."""
    await _register(team.services, 11)
    assert (await read_worker(team.services, "host:7")).worker.pid == 7
    assert await find_worker(team.services, "host:1:abc") == "host:1:abc"
    with pytest.raises(InvalidInput, match="2 workers match 'host:1': host:1:abc, host:10:abc"):
        await find_worker(team.services, "host:1")
    with pytest.raises(NotFound, match="no live worker has the id 'pc'"):
        await read_worker(team.services, "pc")


async def test_a_queue_names_some_of_its_agents(team: LocalTeam) -> None:
    """A queue that many agents serve names the first and counts all."""
    await _register(team.services, MANY)
    await team.orc.admin.pause_queue("skill:write", reason="the model is down")
    task = await team.orc.submit("write")
    await team.orc.submit("unheard-of")
    found = {view.queue: view for view in (await list_queues(team.services)).queues}
    queue = found["skill:write"]
    assert (queue.tasks, queue.head, queue.serving) == (1, task.id, MANY)
    assert queue.agents == tuple(f"agent-{number:03}" for number in range(SERVING))
    assert [(one.verb, one.kind, one.name, one.reason) for one in queue.active_commands] == [
        ("pause", "queue", "skill:write", "the model is down")
    ]
    assert (found["skill:unheard-of"].agents, found["skill:unheard-of"].serving) == ((), 0)
    some = await list_queues(team.services, limit=1)
    assert (len(some.queues), some.total) == (1, 2)


async def test_active_commands_are_data(team: LocalTeam) -> None:
    """A rate, a level, a refusal and the end of a process are values, not words."""
    editor = Agent("editor", rate="60/min")
    worker = await team.work(editor)
    admin = team.orc.admin
    await admin.stop(refuse=True, reason="upgrade", actor="ada@desk")
    await admin.set_limit("@editor", "10/min")
    await admin.set_log_level("debug")
    status = await read_status(team.services)
    found = {one.slot: one for one in status.active_commands}
    assert [one.slot for one in await read_stops(team.services)] == ["stop:all"]
    stop = found["stop:all"]
    assert (stop.verb, stop.kind, stop.refuses, stop.actor, stop.reason) == (
        "stop",
        "all",
        True,
        "ada@desk",
        "upgrade",
    )
    assert (found["limit:@editor"].value, found["log:level"].value) == ("10/min", "debug")
    (limit,) = (await list_limits(team.services)).limits
    assert (limit.limit, limit.rate, limit.defined, limit.agents) == ("@editor", "10/min", "60/min", ("editor",))
    await admin.reset_log_level()
    await admin.start()
    await admin.drain_worker(worker.id)
    (drained,) = (await read_worker(team.services, worker.id)).active_commands
    assert (drained.kind, drained.name, drained.ends_process) == ("worker", worker.id, False)
