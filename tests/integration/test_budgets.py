"""Budgets with real workers: calls that spend, starts that wait, questions, dead letters, and the command line."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

from orchestrator import (
    Agent,
    BudgetExhausted,
    Cause,
    CommandRefused,
    InvalidInput,
    SubmitRefused,
    TaskContext,
    TaskFailed,
    TaskState,
    UpgradeUnfinished,
    sync,
)
from orchestrator.core.formats import Feature, Floor
from orchestrator.tasks.submission import Submission
from orchestrator.views.budgets import list_budgets, show_budget
from tests.helpers.local_team import TIMEOUT_S, run_local_team
from tests.helpers.terminal import Terminal
from tests.helpers.waiting import wait_for
from tests.integration.doctor.doctor_runs import run_doctor

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator import TaskHandle
    from orchestrator.core.settings import Settings
    from orchestrator.views.budgets import BudgetView
    from tests.helpers.local_team import LocalTeam


class Lab:
    """An agent whose tasks make calls that cost."""

    def __init__(self, **options: Any) -> None:
        self.agent = Agent("lab", concurrency=8)
        self.left: list[dict[str, float]] = []
        self.spent = 0.0

        @self.agent.skill(max_attempts=1, **options)
        async def study(ctx: TaskContext, calls: int = 1, usd: float = 0.25, used: float | None = None) -> str:
            for _ in range(calls):
                try:
                    async with ctx.spend(usd=usd, tokens=1000) as call:
                        if used is not None:
                            call.settle(usd=used)
                except BudgetExhausted as exhausted:
                    if exhausted.reason == "used":
                        raise
                    async with ctx.spend(usd=0.01, last=True):
                        return "partial"
                self.spent += usd if used is None else used
                self.left.append(dict(ctx.budget.left))
            return "wrapped up" if ctx.budget.wrap_up else "done"


async def budget(team: LocalTeam, name: str = "run") -> BudgetView:
    """A budget as operators see it."""
    return await show_budget(team.services, name)


async def waits_for_budget(handle: TaskHandle[Any]) -> str:
    """Wait until a task waits for its budget, and return what it says."""

    async def waits() -> bool:
        return (await handle.status()).detail.cause is Cause.BUDGET

    await wait_for(waits, "a task that waits for its budget", TIMEOUT_S)
    return (await handle.status()).detail.text


async def asks(handle: TaskHandle[Any], number: int) -> str:
    """Wait until a task waits with this question, and return it."""

    async def waits() -> bool:
        return (await handle.status()).detail.number == number

    await wait_for(waits, f"question {number}", TIMEOUT_S)
    return (await handle.info()).questions[-1].question


async def test_calls_spend(team: LocalTeam) -> None:
    """Calls are booked as they are settled, and the handler knows what is left and when to finish."""
    await team.orc.admin.set_budget("run", usd=2, tokens="1M", soft=0.5)
    lab = Lab()
    await team.work(lab.agent)
    handle = await team.orc.submit("study", {"calls": 2, "used": 0.125}, budget="run")
    assert await handle.result(TIMEOUT_S) == "done"
    assert [one["usd"] for one in lab.left] == [1.875, 1.75]
    assert (await handle.info()).budgets == ("run",)
    found = await budget(team)
    assert [(one.unit, one.limit, one.spent, one.held) for one in found.units] == [
        ("usd", 2, 0.25, 0), ("tokens", 1_000_000, 2000, 0), ("calls", None, 2, 0),
    ]  # fmt: skip
    handle = await team.orc.submit("study", {"calls": 4, "usd": 0.25}, budget="run")
    assert await handle.result(TIMEOUT_S) == "wrapped up"
    assert (await budget(team)).state == "soft"


async def test_a_failed_call_costs_what_it_reports(team: LocalTeam) -> None:
    """A call that raises costs nothing, or what it had told before."""
    await team.orc.admin.set_budget("run", usd=1)
    agent = Agent("lab")

    @agent.skill(max_attempts=1)
    async def fail(ctx: TaskContext, used: float | None) -> None:
        async with ctx.spend(usd=0.5) as call:
            if used is not None:
                call.settle(usd=used)
            raise ValueError("429")

    await team.work(agent)
    for used, spent in ((None, 0), (0.125, 0.125)):
        with pytest.raises(TaskFailed):
            await (await team.orc.submit("fail", {"used": used}, budget="run")).result(TIMEOUT_S)
        (usd, *_) = (await budget(team)).units
        assert (usd.spent, usd.held) == (spent, 0)


async def test_stop(team: LocalTeam) -> None:
    """Without room a handler may make one last call and return what it has; the next task waits for room."""
    await team.orc.admin.set_budget("run", usd=0.5)
    lab = Lab()
    await team.work(lab.agent)
    first = await team.orc.submit("study", {"calls": 3}, budget="run")
    assert await first.result(TIMEOUT_S) == "partial"
    found = await budget(team)
    assert (found.state, found.units[0].spent) == ("overspent", 0.51)
    second = await team.orc.submit("study", budget="run")
    text = await waits_for_budget(second)
    assert text.startswith("waits for its budget: budget 'run' has no room: ")
    assert text.endswith("raise it with `orc budgets set run --usd N`")
    await team.orc.admin.set_budget("run", usd=0.76)
    assert await second.result(TIMEOUT_S) == "wrapped up"


async def test_a_dead_letter(team: LocalTeam) -> None:
    """The reason of a task whose handler stops at the limit begins with `budget`, and a retry with room succeeds."""
    await team.orc.admin.set_budget("run", usd=0.5)
    agent = Agent("lab")

    @agent.skill
    async def study(ctx: TaskContext) -> str:
        async with ctx.spend(usd=1):
            return "done"

    await team.work(agent)
    handle = await team.orc.submit("study", budget="run")
    with pytest.raises(TaskFailed):
        await handle.result(TIMEOUT_S)
    info = await handle.info()
    assert (info.state, info.attempts) == (TaskState.DEAD, 1)
    assert info.reason.startswith("budget: 1 usd of 0.5 is needed, more than the whole limit of budget 'run'")
    await team.orc.admin.set_budget("run", usd=1)
    await handle.retry()
    assert await handle.result(TIMEOUT_S) == "done"


async def test_ask(team: LocalTeam) -> None:
    """A task asks for more, frees its slot, and goes on with what the answer grants; an answer of 0 refuses."""
    await team.orc.admin.set_budget("run", usd=0.25, at_hard="ask")
    lab = Lab()
    await team.work(lab.agent)
    handle = await team.orc.submit("study", {"calls": 2}, budget="run")
    question = await asks(handle, 1)
    assert "budget 'run' has no room: 0 of 0.25 usd is left, and 0.25 is needed" in question
    with pytest.raises(InvalidInput, match="is not understood"):
        await handle.answer("yes")
    with pytest.raises(InvalidInput, match="must not be negative"):
        await handle.answer(-1)
    # The handler runs again from its start, and the first call was paid for.
    await handle.answer(0.25)
    await asks(handle, 2)
    await handle.answer({"usd": 0.5})
    assert await handle.result(TIMEOUT_S) == "wrapped up"
    found = await budget(team)
    assert (found.units[0].limit, found.units[0].spent) == (1.0, 1.0)
    handle = await team.orc.submit("study", budget="run")
    await waits_for_budget(handle)
    await team.orc.admin.set_budget("run", usd=1.1)
    await asks(handle, 1)
    await handle.answer(0)
    assert await handle.result(TIMEOUT_S) == "partial"


async def test_starts_wait_for_their_reserve(team: LocalTeam) -> None:
    """Only as many tasks start as fit, all run in the end, and the limit is never exceeded."""
    await team.orc.admin.set_budget("run", usd=0.5)
    lab = Lab(reserve={"usd": 0.25})
    let_go = anyio.Event()

    @lab.agent.skill(reserve={"usd": 0.25})
    async def hold(ctx: TaskContext) -> None:
        await let_go.wait()

    await team.work(lab.agent)
    handles = await team.orc.submit_many([Submission("hold", budget="run") for _ in range(4)])
    await wait_for(lambda: _is_held(team, 0.5, 2), "two starts, and two tasks that wait", TIMEOUT_S)
    let_go.set()
    for handle in handles:
        await handle.result(TIMEOUT_S)
    await wait_for(lambda: _is_held(team, 0, 0), "nothing held", TIMEOUT_S)


async def test_a_need_above_the_limit(team: LocalTeam) -> None:
    """A task that needs more than the whole limit says so, and starts once its agent reserves less."""
    await team.orc.admin.set_budget("run", usd=1)
    worker = await team.work(Lab(reserve={"usd": 5}).agent)
    handle = await team.orc.submit("study", budget="run")
    assert "5 usd of 1 is needed, more than the whole limit of budget 'run'" in await waits_for_budget(handle)
    await team.stop(worker)
    await team.work(Lab(reserve={"usd": 0.25}).agent)
    assert await handle.result(TIMEOUT_S) == "done"


async def test_a_smaller_reserve_while_no_supervisor_runs(settings: Settings) -> None:
    """A task that waits for more than its agent reserves by now starts when the next supervisor begins to lead."""
    async with run_local_team(settings, supervised=False) as team:
        await team.orc.admin.set_budget("run", usd=1)
        supervisor = await team.start_supervisor()
        worker = await team.work(Lab(reserve={"usd": 5}).agent)
        handle = await team.orc.submit("study", budget="run")
        await waits_for_budget(handle)
        supervisor.cancel()
        await team.stop(worker)
        await team.work(Lab(reserve={"usd": 0.25}).agent)
        await team.start_supervisor()
        assert await handle.result(TIMEOUT_S) == "done"


async def _is_held(team: LocalTeam, usd: float, waiting: int) -> bool:
    found = await budget(team)
    return (found.units[0].held, found.waiting) == (usd, waiting)


async def test_children_and_agents(team: LocalTeam) -> None:
    """Children spend the budgets of their parent; an agent and a skill add theirs."""
    for name in ("run", "agent", "skill", "child"):
        await team.orc.admin.set_budget(name, usd=1)
    agent = Agent("lab", budget="agent")

    @agent.skill(budget="skill")
    async def parent(ctx: TaskContext) -> list[str]:
        child = await ctx.submit("leaf", budget="child")
        await child.result()
        return sorted((await ctx.budget.refresh()).names)

    @agent.skill
    async def leaf(ctx: TaskContext) -> None:
        async with ctx.spend(usd=0.25):
            pass

    await team.work(agent)
    handle = await team.orc.submit("parent", budget="run")
    assert await handle.result(TIMEOUT_S) == ["agent", "run", "skill"]
    spent = {
        view.budget: sum(unit.spent for unit in view.units if unit.unit == "usd")
        for view in (await list_budgets(team.services)).budgets
    }
    assert spent == {"agent": 0.25, "run": 0.25, "child": 0.25, "skill": 0}


async def test_what_is_refused(team: LocalTeam) -> None:
    """Limits below what is spent, negative and endless amounts, unknown units and budgets are refused."""
    await team.orc.admin.set_budget("run", usd=1)
    await team.work(Lab().agent)
    await (await team.orc.submit("study", {"used": 0.75}, budget="run")).result(TIMEOUT_S)
    with pytest.raises(CommandRefused, match=r"0\.75 usd is spent already; set a limit of at least that"):
        await team.orc.admin.set_budget("run", usd=0.5)
    for wrong in (-1, "nan", "1e3", "much"):
        with pytest.raises(InvalidInput):
            await team.orc.admin.set_budget("run", usd=wrong)
    with pytest.raises(InvalidInput, match="unit 'eur' is not known; use usd, tokens, calls, seconds"):
        Agent("other").skill(reserve={"eur": 1})
    with pytest.raises(SubmitRefused, match="budget 'nope' of the task is not set"):
        await team.orc.submit("study", budget="nope")
    with pytest.raises(InvalidInput, match="at most 8 are allowed"):
        await team.orc.submit("study", budget=tuple(f"b{index}" for index in range(9)))


async def test_refused_beside_older_programs(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older programs would start its tasks without room, so nothing with a budget is stored."""
    await team.orc.admin.set_budget("run", usd=1)
    monkeypatch.setattr(Floor, "admits", lambda _, feature: feature is not Feature.BUDGETS)
    with pytest.raises(UpgradeUnfinished, match="a budget, or a task or an agent that has one"):
        await team.orc.submit("study", budget="run")
    with pytest.raises(UpgradeUnfinished):
        await team.orc.admin.set_budget("run", usd=2)


async def test_the_blocking_client(team: LocalTeam) -> None:
    """It sets budgets and submits tasks with one."""
    lab = Lab()
    await team.work(lab.agent)

    def run() -> str:
        with sync.Orchestrator(settings=team.settings) as orc:
            orc.admin.set_budget("run", usd=1)
            return str(orc.submit("study", budget="run").result(TIMEOUT_S))

    assert await anyio.to_thread.run_sync(run) == "done"
    assert (await budget(team)).units[0].spent == 0.25


async def test_commands(team: LocalTeam, tmp_path: Path) -> None:
    """`orc budgets` sets, lists, shows and deletes; `orc tasks submit` has `--budget`; a refusal says why."""
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)

    async def orc(*typed: str, code: int = 0) -> str:
        done = await anyio.to_thread.run_sync(partial(terminal.orc, *typed))
        assert done.code == code, done.err
        return done.out + done.err

    await orc(
        "budgets", "set", "run-7", "--usd", "2", "--tokens", "2M", "--soft", "0.9", "--per", "day", "--reason", "trial"
    )
    listed = await orc("budgets", "list")
    assert "run-7" in listed
    assert "0 of 2 usd, 0 of 2000000 tokens" in listed
    (shown,) = [json.loads(await orc("budgets", "show", "run-7", "-o", "json"))]
    assert (shown["state"], shown["per"], shown["soft"]) == ("open", "day", 0.9)
    await orc("tasks", "submit", "study", "--budget", "run-7")
    await orc("budgets", "set", "run-7", "--usd=-1", code=2)
    await orc("budgets", "delete", "run-7")
    assert "not set" in await orc("budgets", "show", "run-7", code=3)


async def test_the_doctor(team: LocalTeam) -> None:
    """It names budgets without room for tasks that wait, and damaged ones, and says what is left and what helps."""

    async def found() -> str:
        one = (await run_doctor(team.settings))["budgets"]
        return f"{one.found} -> {one.fix}"

    assert (await found()).startswith("no budget is set")
    await team.orc.admin.set_budget("run", usd=0)
    await team.orc.admin.set_budget("other", usd=1)
    await team.work(Lab().agent)
    handle = await team.orc.submit("study", budget="run")
    await waits_for_budget(handle)
    assert await found() == (
        "budget 'run' has too little room, and 1 task waits for it: 0 of 0 usd is left -> "
        "raise it with `orc budgets set run --usd N`; `orc tasks why ID` says what is needed"
    )
    await handle.cancel()
    key = team.services.keys.budget("other")
    await team.services.store.execute("DEL", key)
    await team.services.store.execute("SET", key, "x")
    assert (await found()).startswith("keys of budget 'other' are damaged, so that it admits nothing, and 0 tasks wait")
    await team.services.store.execute("DEL", key)
