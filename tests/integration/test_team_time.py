"""Time that a test moves: what is scheduled, expires or is limited behaves as if it had passed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, InvalidInput, Retry, Snooze, TaskContext, TaskExpired, TaskState, Throttled
from orchestrator.workers.testing import Team
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faultkit.servers import RedisServer


pytestmark = pytest.mark.every_server


@pytest.fixture
def make(redis_server: RedisServer, prefix: str) -> Callable[..., Team]:
    """Make a team in the namespace of this test."""
    return partial(Team, url=redis_server.url, prefix=prefix)


BEFORE_A_SWEEP_S = 3.0


def noting() -> tuple[Agent, list[str]]:
    """An agent with one slot that notes what it ran, and the notes."""
    agent, ran = Agent("noting", concurrency=1), list[str]()

    @agent.skill
    async def note(name: str) -> None:
        ran.append(name)

    return agent, ran


async def test_a_delayed_task_runs_when_its_time_has_come(make: Callable[..., Team]) -> None:
    """Not a minute before; and as soon as time has moved, it is ready."""
    agent, ran = noting()
    async with make(agent) as team:
        handle = await team.orc.submit("note", {"name": "a"}, delay=timedelta(hours=1))
        await team.advance(minutes=59)
        await team.drain()
        assert ran == []
        due_at = (await handle.info()).due_at
        assert due_at is not None
        assert timedelta(seconds=50) < due_at - datetime.now(UTC) <= timedelta(minutes=1)
        await team.advance("1min")
        assert (await handle.info()).state is not TaskState.SCHEDULED
        await team.drain()
        assert ran == ["a"]


async def test_the_supervisor_learns_of_the_new_times(make: Callable[..., Team]) -> None:
    """It sleeps until the next task is due; a time that has moved near wakes it."""
    agent, ran = noting()
    async with make(agent) as team:
        await team.orc.submit("note", {"name": "far"}, delay=3600.2)
        await team.orc.submit("note", {"name": "near"}, delay=0.05)
        await wait_for(lambda: ran == ["near"], "the near one, after which the supervisor sleeps for the far one")
        await team.advance("1h")
        await wait_for(lambda: ran == ["near", "far"], "the far one, before any sweep", BEFORE_A_SWEEP_S)


async def test_tasks_run_in_the_order_of_their_times(make: Callable[..., Team]) -> None:
    """However far time moves at once."""
    agent, ran = noting()
    async with make(agent) as team:
        for hours in (3, 1, 2):
            await team.orc.submit("note", {"name": str(hours)}, delay=timedelta(hours=hours))
        await team.advance("1d")
        await team.drain()
        assert ran == ["1", "2", "3"]


async def test_retries_and_snoozes_wait_for_their_time(make: Callable[..., Team]) -> None:
    """A delay that a handler asked for passes like one of a submit."""
    patient = Agent("patient")

    @patient.skill
    async def wait(ctx: TaskContext, how: str) -> int:
        if ctx.attempt == 1 and how == "retry":
            raise Retry(delay=timedelta(days=1))
        if how == "snooze" and ctx.session == "first":
            raise Snooze(timedelta(days=1))
        return ctx.attempt

    async with make(patient) as team:
        retried = await team.orc.submit(wait, {"how": "retry"})
        snoozed = await team.orc.submit(wait, {"how": "snooze"}, session="first")
        await team.drain()
        await team.advance(hours=23)
        await team.drain()
        assert [(await handle.info()).state for handle in (retried, snoozed)] == [TaskState.SCHEDULED] * 2
        await team.advance(hours=1)
        await team.drain()
        assert await retried.result(1) == 2
        assert (await snoozed.info()).state is TaskState.SCHEDULED, "it has snoozed again"


async def test_a_task_that_must_start_by_a_time_expires(make: Callable[..., Team]) -> None:
    """Whether it is ready, scheduled, or waits in an inbox; one that has started does not."""
    agent = Agent("busy", concurrency=1)
    gate, started = anyio.Event(), anyio.Event()

    @agent.skill
    async def hold() -> str:
        started.set()
        await gate.wait()
        return "held"

    soon = datetime.now(UTC) + timedelta(minutes=10)
    async with make(agent) as team:
        running = await team.orc.submit(hold, start_by=soon)
        await started.wait()
        ready = await team.orc.submit(hold, start_by=soon)
        scheduled = await team.orc.submit(hold, start_by=soon, delay=300)
        await team.advance(minutes=9)
        assert (await ready.info()).state is not TaskState.EXPIRED
        await team.advance(minutes=2)
        for handle in (ready, scheduled):
            with pytest.raises(TaskExpired):
                await handle.result(2)
        gate.set()
        assert await running.result(2) == "held"


@pytest.mark.parametrize("minutes", [2, 0.5])
async def test_a_task_that_began_in_time_runs_again_later(make: Callable[..., Team], minutes: float) -> None:
    """The last time to start moves with a task that waits; when its worker dies after that time, it runs again."""
    agent, gate, running = Agent("busy", concurrency=1), anyio.Event(), anyio.Event()

    @agent.skill
    async def first() -> None:
        await gate.wait()

    @agent.skill
    async def second(ctx: TaskContext) -> None:
        running.set()
        if ctx.attempt == 1:
            await moved.wait()
            await ctx.emit("x")

    moved = anyio.Event()
    async with make(agent) as team:
        team.crash(second, at="emit")
        await team.orc.submit(first)
        handle = await team.orc.submit(second, start_by=datetime.now(UTC) + timedelta(minutes=10))
        await team.advance(minutes=9)
        gate.set()
        await running.wait()
        await team.advance(minutes=minutes)
        moved.set()
        await team.drain()
        assert (await handle.info()).state is TaskState.SUCCEEDED


@pytest.mark.parametrize("limited", [{"rate": "2/h"}, {"limits": ["model"]}], ids=["rate", "named"])
async def test_rate_limits_reopen_when_time_moves(make: Callable[..., Team], limited: dict[str, object]) -> None:
    """Starts age with the time; the supervisor that slept until the old time wakes."""
    agent, ran = Agent("limited", **limited), list[int]()  # type: ignore[arg-type]

    @agent.skill
    async def count(number: int) -> None:
        ran.append(number)

    async with make(agent, settings={"limits": {"model": "2/h"}}) as team:
        for number in range(5):
            await team.orc.submit(count, {"number": number})
        await wait_for(lambda: len(ran) == 2, "the first two")
        await team.advance(minutes=59)
        with pytest.raises(TimeoutError, match=r"limit"):
            await team.drain(0.1)
        assert ran == [0, 1]
        await team.advance(minutes=2)
        await wait_for(lambda: len(ran) == 4, "the next two, before any sweep", BEFORE_A_SWEEP_S)
        await team.drain(skip_time=True)
        assert ran == [0, 1, 2, 3, 4]


async def test_a_low_task_ages(make: Callable[..., Team]) -> None:
    """With ageing, a low task that has waited long goes first; without time in between it goes last."""
    agent, ran = noting()
    async with make(settings={"queue.aging_s": 60}) as team:
        await team.orc.submit("note", {"name": "low"}, priority="low")
        await team.orc.submit("note", {"name": "normal"})
        await team.advance("10min")
        await team.orc.submit("note", {"name": "late"})
    async with make(agent, settings={"queue.aging_s": 60}) as team:
        await team.drain()
        assert ran == ["normal", "low", "late"]
        for name in ("low", "normal"):
            await team.orc.submit("note", {"name": name}, priority=name)


async def test_a_task_that_is_given_back_keeps_its_place(make: Callable[..., Team]) -> None:
    """Time moves for what runs as for what waits: a task whose worker died still goes before the one behind it."""
    agent, ran, gate = Agent("busy", concurrency=1), list[str](), anyio.Event()

    @agent.skill
    async def work(ctx: TaskContext, name: str) -> None:
        ran.append(name)
        await gate.wait()
        await ctx.emit("x")

    async with make(agent) as team:
        team.crash(work, at="emit")
        for name in ("first", "second"):
            await team.orc.submit(work, {"name": name})
        await wait_for(lambda: ran == ["first"], "the first to run")
        await team.advance("1h")
        gate.set()
        await team.drain()
        assert ran == ["first", "first", "second"]


async def test_a_drain_that_skips_time_ends_everything(make: Callable[..., Team]) -> None:
    """Delays, retries, snoozes, limits, one after another, in no time."""
    agent, ran = Agent("slow", rate="1/d"), list[int]()

    @agent.skill(backoff=3600, max_attempts=5)
    async def struggle(ctx: TaskContext) -> int:
        ran.append(ctx.attempt)
        if ctx.attempt < 4:
            raise ValueError("again")
        return ctx.attempt

    async with make(agent) as team:
        with anyio.fail_after(5):
            handles = [await team.orc.submit(struggle, delay=timedelta(days=days)) for days in (1, 30)]
            await team.drain(skip_time=True)
        assert [await handle.result(1) for handle in handles] == [4, 4]
        assert ran == [1, 2, 3, 4] * 2


async def test_time_is_skipped_for_a_parent_that_waits(make: Callable[..., Team]) -> None:
    """A parent that joins a delayed child runs meanwhile, and so does its own parent: they wait, so time moves."""
    agent = Agent("family", concurrency=5)

    @agent.skill(backoff=3600)
    async def child(ctx: TaskContext) -> int:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return ctx.attempt

    @agent.skill
    async def parent(ctx: TaskContext, depth: int) -> int:
        deeper = {"depth": depth - 1}
        handle = await (ctx.submit("parent", deeper) if depth else ctx.submit(child, delay=timedelta(days=1)))
        return int(await handle.result())

    async with make(agent) as team:
        with anyio.fail_after(5):
            assert await team.run(parent, {"depth": 2}, skip_time=True) == 2


async def test_time_waits_for_what_works(make: Callable[..., Team]) -> None:
    """A handler that is busy with something else is waited for: what it left for later runs after it."""
    agent, ran = Agent("clean", concurrency=5), list[str]()

    @agent.skill
    async def remind() -> None:
        ran.append("remind")

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        await ctx.submit(remind, delay=3600)
        await anyio.sleep(0.2)
        ran.append("work")

    async with make(agent) as team:
        await team.orc.submit(work)
        await team.drain(skip_time=True)
        assert ran == ["work", "remind"]


async def test_an_agent_that_snoozes_for_ever_is_found(make: Callable[..., Team]) -> None:
    """A periodic agent never drains; step by step it can be followed."""
    agent, ran = Agent("periodic"), list[int]()

    @agent.skill
    async def tick() -> None:
        ran.append(1)
        raise Snooze(timedelta(hours=1))

    async with make(agent) as team:
        await team.orc.submit(tick)
        await team.drain()
        for _ in range(3):
            await team.advance(hours=1)
            await team.drain()
        assert len(ran) == 4
        with pytest.raises(AssertionError, match="never drains"):
            await team.drain(skip_time=True, at_most=20)


async def test_time_moves_forward_only(make: Callable[..., Team]) -> None:
    """Nothing, and less than nothing, are refused."""
    async with make() as team:
        for wrong in (0, -1, "soon"):
            with pytest.raises(InvalidInput):
                await team.advance(wrong)


def asking() -> Agent:
    """An agent that asks twice, the second time with a deadline."""
    agent = Agent("asking")

    @agent.skill
    async def plan(ctx: TaskContext) -> list[object]:
        where = await ctx.ask("Where?", options=["here", "there"])
        return [where, await ctx.ask("When?", deadline=3600, default="now")]

    return agent


@pytest.mark.parametrize("answers", [["here", "soon"], {"Where?": "here"}], ids=["all", "one"])
async def test_a_run_answers_questions(make: Callable[..., Team], answers: Any) -> None:
    """What a test answers is answered; a question that is left alone ends at its deadline, to which time is moved."""
    async with make(asking()) as team:
        found = await team.run("plan", answers=answers, skip_time=True)
        assert found == (["here", "soon"] if isinstance(answers, list) else ["here", "now"])


async def test_a_drain_leaves_what_waits_for_a_person(make: Callable[..., Team]) -> None:
    """A task that waits for a person for ever is nothing to do, also when time is skipped; answered, it goes on."""
    async with make(asking()) as team:
        handle = await team.orc.submit("plan")
        await team.drain(skip_time=True)
        assert (await handle.info()).state is TaskState.AWAITING_INPUT
        with pytest.raises(TimeoutError, match=r"asks 'Where\?'"):
            await team.run("plan", within=0.1)
        await handle.answer("there")
        await team.drain()
        assert (await handle.info()).state is TaskState.AWAITING_INPUT
        await team.advance(hours=2)
        await team.drain()
        assert await handle.result(0) == ["there", "now"]


async def test_time_keeps_the_place_of_what_asks(make: Callable[..., Team]) -> None:
    """A task that waits for a person while time passes comes back to its place in front of younger ones."""
    agent, ran = noting()

    @agent.skill
    async def slow(ctx: TaskContext) -> None:
        await ctx.ask("Go on?")
        ran.append("answered")

    async with make(agent) as team:
        handle = await team.orc.submit("slow")
        await team.drain()
        await team.advance("1h")
        await team.orc.submit("note", {"name": "younger"}, delay=60)
        await handle.answer(value=True)
        await team.drain()
        assert ran == ["answered"]


@pytest.mark.parametrize(
    ("limits", "shared"),
    [(("gpt",), False), ((), False), (("gpt",), True)],
    ids=["declared", "undeclared", "shared"],
)
async def test_a_provider_is_open_when_its_pause_has_passed(
    make: Callable[..., Team], limits: tuple[str, ...], *, shared: bool
) -> None:
    """The pause that it told, and the requests in its window, move too."""
    agent, answers = Agent("writer", limits=limits), [Throttled(3600)]

    @agent.skill(max_attempts=1)
    async def write(ctx: TaskContext) -> int:
        async with ctx.provider("gpt", wait=0):
            if answers:
                raise answers.pop()
        return ctx.attempt

    async with make(agent, settings={"limits": {"gpt": {"requests": "1/d", "shared": shared}}}) as team:
        handle = await team.orc.submit("write")
        await team.drain()
        assert (await handle.status()).state is TaskState.SCHEDULED
        await team.advance("1h")
        await team.drain()
        # The window of its requests is full.
        assert (await handle.status()).state is TaskState.SCHEDULED
        await team.advance("1d")
        await team.drain()
        assert await handle.result(4) == 1
