"""A whole team on a cluster, which refuses every command and script with keys of two slots: of one server, of three."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator import Agent, Record, Standing, TaskContext
from orchestrator.core.errors import ServerRefused
from tests.faultkit.clusters import run_cluster
from tests.faultkit.servers import cluster_server
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.faultkit.clusters import Cluster
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam

NAMES = ("ada", "bob", "eve")


@pytest.fixture(scope="module", params=["one", "three"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster | RedisServer]:
    """One server that has all slots; three masters, each with its part of them."""
    with cluster_server() if request.param == "one" else run_cluster() as running:
        yield running


@pytest.fixture
async def team(cluster: Cluster | RedisServer) -> AsyncIterator[LocalTeam]:
    """A team on it."""
    async with run_local_team(local_settings(cluster.url, "c:test:t")) as running:
        yield running


async def test_everything_that_is_shared(team: LocalTeam) -> None:
    """A handler and a client use tasks, locks, workspace, agent state, boards and limits, each in a slot of its own."""
    agent = Agent("ada", concurrency=3)

    @agent.skill(lock="session")
    async def work(ctx: TaskContext) -> int:
        await ctx.scratch.set("draft", 1)
        await ctx.workspace.publish("draft")
        await ctx.agent_state.set({"status": "busy"})
        await ctx.memory.store(Record(step=1, kind="state", content=ctx.session))
        async with ctx.locks.hold("report"):
            assert (await ctx.limits.check("api", 3, 60)).allowed
        return await ctx.agent_state.bump("done")

    await team.work(agent)
    handles = [await team.orc.submit("work", session=f"s {name}") for name in NAMES]
    assert sorted([await handle.result(TIMEOUT_S) for handle in handles]) == [1, 2, 3]
    orc = team.orc
    assert not (await orc.limits.check("api", 3, 60)).allowed
    await orc.agents.set_state("bob", {"status": "idle"})
    assert await orc.agents.states(NAMES, "status") == {
        "ada": {"status": "busy"}, "bob": {"status": "idle"}, "eve": {},
    }  # fmt: skip
    recalled = await orc.memory("ada").recent()
    assert sorted(record.content for record in recalled) == sorted(f"s {name}" for name in NAMES)
    assert await orc.memory("ada").get(*[record.id for record in recalled]) == recalled
    assert list(await orc.agents.active()) == ["ada"]
    assert await orc.board().top() == [Standing(1, "ada", 3)]
    await orc.board("mine").add("bob", 2)
    assert await orc.board("mine").rank("bob") == Standing(1, "bob", 2)
    assert (await orc.workspace("s ada").snapshot()).paths["draft"].value == 1
    for scope in ("session:s ada", "agent:ada", "pool"):
        async with orc.locks(scope).hold("n", wait=0):
            assert [lock.name for lock in await orc.locks(scope).list()] == ["n"]


async def test_two_slots_are_refused(team: LocalTeam) -> None:
    """A twin: the server refuses a command with keys of two pools."""
    with pytest.raises(ServerRefused, match="CROSSSLOT"):
        await team.services.store.execute("EXISTS", "{pool:a}:x", "{pool:b}:x")
