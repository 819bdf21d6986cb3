"""`ctx.agent_state` and `orc.agents`: what agents say of themselves, who may change it, which of them live."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, Fenced, InvalidInput, Submission, TaskContext
from orchestrator.locks import scripts
from orchestrator.locks.model import new_nonce
from orchestrator.store.keys import ScopeKeys
from tests.helpers.guards import keys_of
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    import redis

    from tests.helpers.local_team import LocalTeam


async def test_fields(team: LocalTeam) -> None:
    """One field, some, all; of many agents at once; what is missing is left out."""
    agents = team.orc.agents
    await agents.set_state("ed", {"status": "busy", "current_task": None, "parts": [1.0, {"é": []}]})
    await agents.set_state("bo", {"status": "idle"})
    await agents.set_state("ed", {"status": "idle"}, op_id="mine")
    await agents.set_state("ed", {"status": "busy"})
    await agents.set_state("ed", {"status": "idle"}, op_id="mine")
    assert await agents.state("ed", "status", "other") == {"status": "busy"}
    assert await agents.state("ed") == {"status": "busy", "current_task": None, "parts": [1.0, {"é": []}]}
    assert await agents.states(["ed", "bo", "nobody"], "status") == {
        "ed": {"status": "busy"}, "bo": {"status": "idle"}, "nobody": {},
    }  # fmt: skip
    assert await agents.states([]) == {}


async def test_sums(team: LocalTeam) -> None:
    """Attempts of many tasks and other clients count exactly."""
    agent = Agent("ed", concurrency=10)

    @agent.skill
    async def work(ctx: TaskContext) -> int:
        await ctx.agent_state.set({"current_task": ctx.task_id})
        return await ctx.agent_state.bump("tasks_completed")

    await team.work(agent)
    handles = await team.orc.submit_many([Submission(work) for _ in range(20)])
    await asyncio.gather(*[team.orc.agents.bump("ed", "tasks_completed", 2) for _ in range(20)])
    assert len({await handle.result(TIMEOUT_S) for handle in handles}) == 20
    found = await team.orc.agents.state("ed")
    assert found["tasks_completed"] == 60
    assert found["current_task"] in {handle.id for handle in handles}
    # Whoever shows no right needs none, and whoever showed one has given it back.
    assert await team.orc.locks("agent:ed").list() == []


async def test_a_late_attempt_changes_nothing(team: LocalTeam) -> None:
    """An attempt whose task was taken over is refused; before, and in its successor's name, the same call is made."""
    agent = Agent("ed")
    taken, heard = anyio.Event(), list[str]()

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        await ctx.agent_state.set({"by": "first"})
        held = await ctx._resources.locks.execution.agent.proof()
        generation = int(held.value.split(":")[2]) + 1
        keys = ScopeKeys(team.services.keys.prefix, "agent", "ed")
        call = scripts.claim(
            keys, lock=held.lock, task=ctx.task_id, generation=str(generation), nonce=new_nonce(), ttl_ms=60_000
        )
        assert (await team.services.store.call(call)).status == "taken"
        for change in (ctx.agent_state.set({"by": "late"}), ctx.agent_state.bump("late")):
            try:
                await change
            except Fenced as fenced:
                heard.append(str(fenced.owner))
        taken.set()
        await anyio.sleep_forever()

    await team.work(agent)
    await team.orc.submit("work")
    with anyio.fail_after(TIMEOUT_S):
        await taken.wait()
    assert len(heard) == 2
    assert await team.orc.agents.state("ed") == {"by": "first"}


async def test_it_is_shared_by_name(team: LocalTeam, redis_client: redis.Redis) -> None:
    """The state lies in the agent's own slot and goes after a week; a hostile name of an agent is refused."""
    await team.orc.agents.set_state("ed", {"a {b} }": "x"})
    (key,) = [name for name in keys_of(redis_client, team.settings.prefix) if name.endswith("{agent:ed}:state")]
    assert 0 < int(redis_client.ttl(key)) <= 604_800
    with pytest.raises(InvalidInput, match="agent"):
        await team.orc.agents.set_state("a}:b", {"x": 1})


@pytest.mark.parametrize(
    "wrong", [{}, {"": 1}, {"x": object()}, {"x": float("nan")}, {"x": "y" * 70_000}, {f"f{i}": 1 for i in range(201)}]
)
async def test_refused_by_validation(team: LocalTeam, wrong: dict[str, Any]) -> None:
    """What cannot be kept is refused, and nothing is changed."""
    with pytest.raises(InvalidInput):
        await team.orc.agents.set_state("ed", wrong)
    assert await team.orc.agents.state("ed") == {}


async def test_no_sum_of_a_text(team: LocalTeam) -> None:
    """Only whole numbers can be added to, and only whole numbers can be added."""
    await team.orc.agents.set_state("ed", {"name": "Ed"})
    with pytest.raises(InvalidInput, match="holds no whole number"):
        await team.orc.agents.bump("ed", "name")
    with pytest.raises(InvalidInput, match="by must be"):
        await team.orc.agents.bump("ed", "n", True)  # noqa: FBT003 - that is what is refused


async def test_who_lives(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Agents whose workers sent a heartbeat lately, the latest first; silent ones are not there."""
    assert await team.orc.agents.active() == {}
    for name in ("ed", "bo"):
        agent = Agent(name)
        agent.skill(name=f"work-{name}")(_nothing)
        await team.work(agent)
    found = await team.orc.agents.active(within=timedelta(minutes=1))
    assert set(found) == {"ed", "bo"}
    assert all(abs(datetime.now(UTC) - heartbeat) < timedelta(minutes=1) for heartbeat in found.values())
    redis_client.zadd(team.services.keys.agents, {"gone": 1_000.0})
    assert "gone" not in await team.orc.agents.active(60)
    assert list(await team.orc.agents.active(3_000_000_000))[-1] == "gone"


async def _nothing() -> None:
    pass
