"""`orc.limits`: exact to the limit under many callers, with the usual limits by name."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import Agent, InvalidInput, Submission, TaskContext
from orchestrator.core.errors import UpgradeUnfinished
from orchestrator.core.formats import FORMAT, OLDEST_FORMAT
from tests.helpers.guards import keys_of
from tests.helpers.local_team import TIMEOUT_S, run_local_team

if TYPE_CHECKING:
    import redis

    from orchestrator.core.settings import Settings
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
        f"{{limit:{limit}{suffix}"
        for limit in ("tasks%3Aada}:usage:60000", "api%3A10.0.0.7}:usage:60000", "weather}:usage:3600000")
        for suffix in ("", ":ops")
    }


async def test_large_costs(team: LocalTeam) -> None:
    """A limit counts tokens as well as calls, up to the largest number that scripts know exactly."""
    check = partial(team.orc.limits.check, "tokens", 2**53, 3600)
    assert (await check(cost=2**53 - 1)).remaining == 1
    assert not (await check(cost=2)).allowed
    assert (await check()).used == 2**53


async def test_old_programs_in_the_pool(settings: Settings, redis_client: redis.Redis) -> None:
    """Below the version floor a limit counts as old programs do; what they cannot count is refused until then."""
    # A supervisor that leads raises the floor again to the one that it has seen.
    async with run_local_team(settings, supervised=False) as team:
        redis_client.set(team.services.keys.format, OLDEST_FORMAT)
        limits = (await team.client()).limits
        assert (await limits.check("calls", 5, 3600, cost=3)).used == 3
        keys = {name.rpartition("}:")[2] for name in keys_of(redis_client, team.settings.prefix) if "{limit:" in name}
        assert keys == {"window:3600000"}
        for limit, cost in ((10**6, 1), (10**5, 501)):
            with pytest.raises(UpgradeUnfinished, match="orc upgrade finish"):
                await limits.check("tokens", limit, 3600, cost=cost)
        redis_client.set(team.services.keys.format, FORMAT)
        assert (await limits.check("tokens", 10**6, 3600, cost=501)).allowed
        # What was counted by units counts on, also for a program that has not heard of the floor.
        assert not (await limits.check("calls", 5, 3600, cost=3)).allowed
        assert (await limits.check("calls", 5, 3600, cost=2)).used == 5
        assert not (await team.orc.limits.check("calls", 5, 3600)).allowed


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
        {"limit": 2**53 + 1, "window": 1},
        {"limit": 2**53, "window": 1, "cost": 2**53 + 1},
        {"profile": "nonsense"},
        {"profile": "api", "limit": 5},
        {"limit": 5, "window": 1, "op_id": ""},
    ],
)
async def test_refused_by_validation(team: LocalTeam, wrong: dict[str, Any]) -> None:
    """A limit without a window, or with numbers that cannot be, is refused before anything is sent."""
    with pytest.raises(InvalidInput):
        await team.orc.limits.check("x", **wrong)
