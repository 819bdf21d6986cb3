"""`orc.limits`: exact to the limit under many callers, with the usual limits by name."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import Agent, InvalidInput, Submission, TaskContext
from tests.helpers.guards import keys_of
from tests.helpers.local_team import TIMEOUT_S

if TYPE_CHECKING:
    import redis

    from tests.helpers.local_team import LocalTeam


async def test_fifty_callers(team: LocalTeam) -> None:
    """Of five hundred calls at once exactly as many are allowed as the limit says."""
    decisions = await asyncio.gather(*[team.orc.limits.check("ip/1", 60, 3600) for _ in range(500)])
    assert sum(one.allowed for one in decisions) == 60
    assert {one.remaining for one in decisions if not one.allowed} == {0}
    assert all(0 < one.retry_after <= 3600 for one in decisions if not one.allowed)


async def test_in_a_handler(team: LocalTeam) -> None:
    """Attempts of several tasks and other clients count into the same window."""
    agent = Agent("caller", concurrency=5)

    @agent.skill
    async def call(ctx: TaskContext) -> bool:
        return (await ctx.limits.check("weather", 3, 3600)).allowed

    await team.work(agent)
    assert (await team.orc.limits.check("weather", 3, 3600)).allowed
    handles = await team.orc.submit_many([Submission(call) for _ in range(5)])
    allowed = [await handle.result(TIMEOUT_S) for handle in handles]
    assert sum(allowed) == 2


@pytest.mark.parametrize(("profile", "count"), [("tasks", 10), ("hooks", 20), ("chat", 10), ("api", 60)])
async def test_profiles(team: LocalTeam, profile: str, count: int) -> None:
    """Each usual limit allows what it says, for each name, and counts apart from the others."""
    decisions = [await team.orc.limits.check("editor", profile=profile) for _ in range(count + 1)]
    assert [one.allowed for one in decisions] == [True] * count + [False]
    assert (await team.orc.limits.check("other", profile=profile)).used == 1


async def test_names_of_keys(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A key names what is limited, for whom, and over how long."""
    await team.orc.limits.check("ada", profile="tasks")
    await team.orc.limits.check("10.0.0.7", profile="api")
    await team.orc.limits.check("weather", 3, timedelta(hours=1))
    prefix = team.settings.prefix
    assert {name.removeprefix(f"{prefix}:") for name in keys_of(redis_client, prefix) if "{limit:" in name} == {
        "{limit:tasks%3Aada}:window:60000",
        "{limit:api%3A10.0.0.7}:window:60000",
        "{limit:weather}:window:3600000",
    }


async def test_counts_once(team: LocalTeam) -> None:
    """What has a name is counted once."""
    used = [(await team.orc.limits.check("x", 5, 60, cost=2, op_id="mine")).used for _ in range(2)]
    assert used == [2, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"limit": 5},
        {"limit": 0, "window": 1},
        {"limit": 5, "window": 0},
        {"limit": 5, "window": 1, "cost": 6},
        {"limit": True, "window": 1},
        {"profile": "nonsense"},
        {"profile": "api", "limit": 5},
        {"limit": 5, "window": 1, "op_id": ""},
    ],
)
async def test_refused_by_validation(team: LocalTeam, wrong: dict[str, Any]) -> None:
    """A limit without a window, or with numbers that cannot be, is refused before anything is sent."""
    with pytest.raises(InvalidInput):
        await team.orc.limits.check("x", **wrong)
