"""What is wrapped around handlers: lifespan, middleware, and the limits of their time."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, Reject, Snooze, TaskContext
from orchestrator.core.errors import InvalidInput, TaskFailed
from orchestrator.tasks.model import TaskState
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.process_handlers import Point
from tests.helpers.process_handlers import swap as swap_points
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.workers.agent import CallNext
    from tests.helpers.local_team import LocalTeam


# ---------------------------------------------------------------------------------------------------------- lifespan


async def test_a_lifespan_surrounds_all_tasks_of_a_worker(team: LocalTeam) -> None:
    """It is entered before the first task, its value is `ctx.state`, and it is left after the last one."""
    log: list[str] = []

    @asynccontextmanager
    async def lifespan(agent: Agent) -> AsyncIterator[dict[str, str]]:
        log.append(f"open {agent.name}")
        yield {"connection": agent.name.upper()}
        log.append("close")

    editor, plain = Agent("editor", lifespan=lifespan), Agent("plain")

    @editor.skill
    async def work(ctx: TaskContext) -> str:
        log.append("work")
        await anyio.sleep(0.05)
        log.append("worked")
        return str(ctx.state["connection"])

    @plain.skill
    def stateless(ctx: TaskContext) -> bool:
        return ctx.state is None

    worker = await team.work(editor, plain)
    handle = await team.orc.submit(work)
    assert await (await team.orc.submit(stateless)).result(TIMEOUT_S)
    assert await handle.result(TIMEOUT_S) == "EDITOR"
    last = await team.orc.submit(work)
    await wait_for(lambda: log.count("work") == 2, "the last task")
    await team.stop(worker)
    assert log == ["open editor", "work", "worked", "work", "worked", "close"]
    assert await last.result(TIMEOUT_S) == "EDITOR"


async def test_a_lifespan_that_fails_stops_the_worker_before_it_is_known(team: LocalTeam) -> None:
    """No task is given to a worker whose agent could not be set up; what was set up is taken down again."""
    log: list[str] = []

    @asynccontextmanager
    async def good(_: Agent) -> AsyncIterator[None]:
        log.append("open")
        try:
            yield
        finally:
            log.append("close")

    @asynccontextmanager
    async def bad(_: Agent) -> AsyncIterator[None]:
        if log:
            raise ConnectionError("no database")
        yield

    agents = Agent("good", lifespan=good), Agent("bad", lifespan=bad)
    from orchestrator.workers.runtime.worker import run_worker

    with pytest.raises(ConnectionError, match="no database"):
        await run_worker(team.settings, agents)
    assert log == ["open", "close"]
    assert await team.services.store.execute("ZCARD", team.services.keys.agents) == 0


def test_what_is_no_lifespan_or_middleware_is_refused() -> None:
    """The mistake is found when the agent is declared."""
    with pytest.raises(InvalidInput, match="lifespan of agent 'editor'"):
        Agent("editor", lifespan=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="middleware of agent 'editor'"):
        Agent("editor", middleware=["log"])  # type: ignore[list-item]


# -------------------------------------------------------------------------------------------------------- middleware


async def test_middleware_wraps_handlers_in_order(team: LocalTeam) -> None:
    """The first is outermost; each sees the context, and the value, which it may change."""
    log: list[str] = []

    async def outer(ctx: TaskContext, call_next: CallNext) -> Any:
        log.append(f"outer {ctx.attempt}")
        value = await call_next(ctx)
        log.append(f"outer got {value}")
        return f"<{value}>"

    async def inner(_: TaskContext, call_next: CallNext) -> Any:
        log.append("inner")
        return await call_next() + "!"

    agent = Agent("editor", middleware=[outer, inner])

    @agent.skill
    async def in_loop(word: str) -> str:
        log.append(word)
        return word

    @agent.skill
    def in_thread(word: str) -> str:
        log.append(word)
        return word

    await team.work(agent)
    for skill in ("in_loop", "in_thread"):
        log.clear()
        assert await (await team.orc.submit(skill, {"word": "hello"})).result(TIMEOUT_S) == "<hello!>"
        assert log == ["outer 1", "inner", "hello", "outer got hello!"]


async def test_middleware_sees_failures_and_may_decide(team: LocalTeam) -> None:
    """It may turn a failure into a value, a value into a failure, or never call the handler at all."""

    async def decide(ctx: TaskContext, call_next: CallNext) -> Any:
        if "skip" in ctx.tags:
            return "skipped"
        if "refuse" in ctx.tags:
            raise Reject("not today")
        try:
            return await call_next(ctx)
        except ValueError as broken:
            return f"repaired {broken}"

    agent, runs = Agent("editor", middleware=[decide]), []

    @agent.skill
    async def work() -> str:
        runs.append(1)
        raise ValueError("this")

    await team.work(agent)
    assert await (await team.orc.submit(work)).result(TIMEOUT_S) == "repaired this"
    assert await (await team.orc.submit(work, tags=["skip"])).result(TIMEOUT_S) == "skipped"
    with pytest.raises(TaskFailed, match="not today"):
        await (await team.orc.submit(work, tags=["refuse"])).result(TIMEOUT_S)
    assert len(runs) == 1


async def test_middleware_sees_the_value_of_a_process(team: LocalTeam) -> None:
    """What a process answered is its type again for the middleware."""
    seen: list[Any] = []

    async def note(ctx: TaskContext, call_next: CallNext) -> Any:
        value = await call_next(ctx)
        seen.append(value)
        return value

    agent = Agent("cruncher", middleware=[note])
    swap = agent.skill(process=True)(swap_points.handler)
    await team.work(agent)
    assert await (await team.orc.submit(swap, {"point": {"x": 1, "y": 2}})).result(20) == Point(x=2, y=1)
    assert seen == [Point(x=2, y=1)]


# ------------------------------------------------------------------------------------------------------------- limits


async def test_an_attempt_may_ask_for_more_time(team: LocalTeam) -> None:
    """`extend` moves the deadline; its twin without it fails at the deadline."""
    agent, deadlines = Agent("editor"), []

    @agent.skill(timeout=0.2, max_attempts=1)
    async def work(ctx: TaskContext, *, extend: bool) -> str:
        deadlines.append(ctx.deadline)
        if extend:
            await ctx.extend(30)
            deadlines.append(ctx.deadline)
        await anyio.sleep(0.3)
        return "done"

    await team.work(agent)
    assert await (await team.orc.submit(work, {"extend": True})).result(TIMEOUT_S) == "done"
    assert [round((at - datetime.now(UTC)).total_seconds()) for at in deadlines if at] == [0, 30]
    with pytest.raises(TaskFailed, match=r"TimeoutError: the attempt took longer than its timeout of 0\.2 s"):
        await (await team.orc.submit(work, {"extend": False})).result(TIMEOUT_S)


async def test_an_attempt_that_falls_silent_is_cancelled(team: LocalTeam) -> None:
    """Signs of life keep an attempt going for longer than `silence`; without them it fails, and the reason says so."""
    agent = Agent("editor")

    @agent.skill(silence=0.2, max_attempts=1)
    async def work(ctx: TaskContext, *, signs: bool) -> str:
        for _ in range(8):
            await anyio.sleep(0.05)
            if signs:
                await ctx.heartbeat()
        return "done"

    await team.work(agent)
    assert await (await team.orc.submit(work, {"signs": True})).result(TIMEOUT_S) == "done"
    with pytest.raises(TaskFailed, match=r"TimeoutError: the attempt gave no sign of life for 0\.2 s"):
        await (await team.orc.submit(work, {"signs": False})).result(TIMEOUT_S)


async def test_the_hard_limit_stands_beside_silence(team: LocalTeam) -> None:
    """Signs of life do not move the deadline."""
    agent = Agent("editor")

    @agent.skill(silence=0.2, timeout=0.3, max_attempts=1)
    async def work(ctx: TaskContext) -> None:
        while True:
            await anyio.sleep(0.02)
            await ctx.heartbeat()

    await team.work(agent)
    with pytest.raises(TaskFailed, match=r"longer than its timeout of 0\.3 s"):
        await (await team.orc.submit(work)).result(TIMEOUT_S)


async def test_signals_are_received_while_time_is_limited(team: LocalTeam) -> None:
    """A handler that cleans up after its time is over may still decide how its attempt ends."""
    agent = Agent("editor")

    @agent.skill(timeout=0.1)
    async def work() -> None:
        try:
            await anyio.sleep(30)
        except anyio.get_cancelled_exc_class():
            raise Snooze(3600, reason="later") from None

    await team.work(agent)
    handle = await team.orc.submit(work)

    async def scheduled() -> bool:
        return (await handle.status()).state is TaskState.SCHEDULED

    await wait_for(scheduled, "the snooze")
    assert (await handle.info()).reason == "later"
