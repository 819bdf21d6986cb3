"""Pauses with an end: one handler that meets a 429 holds back all workers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from orchestrator import Agent, InvalidInput, TaskContext
from orchestrator.control.commands import HoldAgent
from orchestrator.control.sending import send
from orchestrator.control.signing import signer_of
from orchestrator.control.verification import verify_desired_state
from orchestrator.core.errors import CommandRefused, UpgradeUnfinished
from orchestrator.core.formats import Feature
from orchestrator.core.slots import hold_slot
from orchestrator.doctor.active_commands import check_active_commands
from orchestrator.doctor.context import CheckContext
from orchestrator.tasks.submission import Submission
from orchestrator.views.agents import list_agents
from orchestrator.views.control import list_commands
from orchestrator.views.limits import list_limits
from orchestrator.views.status import read_status
from orchestrator.why.model import Cause
from orchestrator.workers.testing import run_skill
from tests.helpers.local_team import TIMEOUT_S, run_local_team
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from orchestrator.client.handle import TaskHandle
    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam

RATE = "1000/s"
LONG_S = 600


def make_agent(name: str, begun: list[tuple[str, float]]) -> Agent:
    """An agent with a named limit, whose handler may pause the limit or itself."""
    agent = Agent(name, limits=["model"], concurrency=2)

    @agent.skill(name=f"work-{name}")
    async def work(ctx: TaskContext, pause: str = "", for_s: float = 0.0) -> str:
        begun.append((ctx.agent, time.monotonic()))
        if pause == "limit":
            await ctx.limit("model").pause(for_s, "429")
        elif pause == "agent":
            await ctx.pause_agent(for_s, "429")
        return ctx.agent

    return agent


SECRET = {"secret": "a secret of sixteen letters or more"}
SETTINGS = [{"limits": {"model": RATE}}, {"limits": {"model": RATE}, "control": SECRET}]
pytestmark = [
    pytest.mark.parametrize("settings", SETTINGS, ids=["unsigned", "signed"], indirect=True),
    pytest.mark.roles(worker="pauser"),
]


async def waits_paused(handle: TaskHandle[str]) -> str:
    """Wait until a task waits for the end of a pause; return why."""
    said = []

    async def paused() -> bool:
        status = await handle.status()
        said.append(status.why)
        return status.detail.cause is Cause.PAUSED

    await wait_for(paused, lambda: f"a pause, saw {said[-1]}", TIMEOUT_S)
    return said[-1]


async def test_a_429_holds_back_all_workers_of_a_limit(team: LocalTeam) -> None:
    """No agent with the limit starts a task before the end; then all go on by themselves."""
    begun: list[tuple[str, float]] = []
    for name in ("one", "one", "two"):
        await team.work(make_agent(name, begun))
    paused_s = time.monotonic()
    first = await team.orc.submit("work-one", {"pause": "limit", "for_s": 1.5})
    assert await first.result(TIMEOUT_S) == "one"
    others = await team.orc.submit_many([Submission(f"work-{name}") for name in ("one", "two") * 3])
    why = await waits_paused(others[0])
    assert "limit 'model' is paused since" in why
    assert f"by agent one, task {first.id}: 429; `orc start --limit model` ends that" in why
    assert [await other.result(TIMEOUT_S) for other in others] == ["one", "two"] * 3
    assert len(begun) == 7
    assert min(at for _, at in begun[1:]) - paused_s >= 1.5
    await verify_desired_state(team.services.store, signer_of(team.services.settings, place=team.services.keys.root))
    assert not await team.services.store.execute("HEXISTS", team.services.keys.desired, hold_slot("limit", "model"))


async def test_an_agent_pauses_itself(team: LocalTeam) -> None:
    """Other agents go on, also those that share its limit; it is shown everywhere, and `orc start` ends it."""
    begun: list[tuple[str, float]] = []
    for name in ("one", "two"):
        await team.work(make_agent(name, begun))
    await (await team.orc.submit("work-one", {"pause": "agent", "for_s": LONG_S})).result(TIMEOUT_S)
    waiting = await team.orc.submit("work-one")
    assert await (await team.orc.submit("work-two")).result(TIMEOUT_S) == "two"
    assert "agent 'one' is paused since" in await waits_paused(waiting)
    services = team.services
    shown = {one.agent.name: one.active_commands for one in (await list_agents(services)).agents}
    (active,) = shown["one"]
    assert (active.verb, active.reason, shown["two"]) == ("hold", "429", ())
    assert active.until is not None
    assert LONG_S - 60 < (active.until - active.since).total_seconds() <= LONG_S + 1
    assert [one.slot for one in (await read_status(services)).active_commands] == ["hold:agent:one"]
    (listed,) = await list_commands(services)
    assert (listed.kind, listed.actor.startswith("agent one, task "), listed.reason) == ("hold-agent", True, "429")
    context = CheckContext(services.settings, services.store, await services.store.server_info(), {})
    (finding,) = await check_active_commands(context)
    assert "hold:agent:one by agent one" in finding.found
    await team.orc.admin.start(agent="one")
    assert await waiting.result(TIMEOUT_S) == "one"
    assert (await read_status(services)).active_commands == ()


async def test_a_longer_pause_replaces_a_shorter_one(team: LocalTeam) -> None:
    """Never the other way round, so that many answers with 429 order one end; nothing is recorded for the others."""
    begun: list[tuple[str, float]] = []
    await team.work(make_agent("one", begun))
    await team.orc.admin.hold_limit("model", LONG_S)
    with pytest.raises(CommandRefused, match="a pause that ends later is active"):
        await team.orc.admin.hold_limit("model", 1)
    (limit,) = [one for one in (await list_limits(team.services)).limits if one.limit == "model"]
    (first,) = limit.active_commands
    await team.orc.admin.hold_limit("model", 2 * LONG_S)
    (limit,) = [one for one in (await list_limits(team.services)).limits if one.limit == "model"]
    (second,) = limit.active_commands
    assert first.until is not None
    assert second.until is not None
    assert (second.until - first.until).total_seconds() >= LONG_S - 1
    assert limit.defined == RATE
    handle = await team.orc.submit("work-one")
    await waits_paused(handle)
    await team.orc.admin.start(limit="model")
    assert await handle.result(TIMEOUT_S) == "one"


async def test_a_limit_that_no_agent_has_is_refused(team: LocalTeam) -> None:
    """By name, in the handler: a pause of it would hold back nothing."""
    begun: list[tuple[str, float]] = []
    agent = Agent("typo")

    @agent.skill(max_attempts=1)
    async def work(ctx: TaskContext) -> str:
        with pytest.raises(InvalidInput, match="no limit 'modle'"):
            await ctx.limit("modle").pause(1)
        with pytest.raises(InvalidInput, match="for_s"):
            await ctx.pause_agent(-1)
        return "refused"

    await team.work(agent)
    await team.work(make_agent("one", begun))
    assert await (await team.orc.submit("work")).result(TIMEOUT_S) == "refused"


async def test_an_answer_is_passed_on_as_it_is(team: LocalTeam) -> None:
    """`Retry-After: 0` pauses nothing, and a long text of an answer is cut; neither fails the attempt."""
    agent = Agent("one", limits=["model"])

    @agent.skill(max_attempts=1)
    async def work(ctx: TaskContext) -> str:
        await ctx.limit("model").pause(0, "429")
        await ctx.pause_agent(0, "429")
        await ctx.limit("model").pause(LONG_S, "4" * 2000)
        return "paused"

    await team.work(agent)
    assert await (await team.orc.submit("work")).result(TIMEOUT_S) == "paused"
    (listed,) = await list_commands(team.services)
    assert (listed.kind, listed.reason) == ("hold-limit", "4" * 500)


async def test_pauses_wait_for_the_end_of_an_upgrade(settings: Settings) -> None:
    """Older programs would assign all the same, so nothing is given."""
    # A supervisor that leads raises the floor again to the one that it has seen.
    async with run_local_team(settings, supervised=False) as team:
        store = team.services.store
        await store.execute("SET", store.keys.format, Feature.TIMED_PAUSES.floor - 1)
        store.floor.value = Feature.TIMED_PAUSES.floor - 1
        with pytest.raises(UpgradeUnfinished, match="a pause with an end"):
            await send(store, team.services.settings, HoldAgent(agent="one", for_s=60))
        assert not await store.execute("EXISTS", store.keys.desired)


async def test_a_test_of_a_handler_needs_no_pool(team: LocalTeam) -> None:
    """A pause changes nothing there."""
    begun: list[tuple[str, float]] = []
    agent = make_agent("one", begun)
    outcome = await run_skill(agent.skills["work-one"], {"pause": "limit", "for_s": 60})
    assert (outcome.verdict, outcome.value) == ("succeeded", "one")
