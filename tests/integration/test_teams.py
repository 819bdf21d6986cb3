"""`Team`: a whole team in a test's own tasks, what it leaves, what it says was submitted, how it drains."""

from __future__ import annotations

import signal
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from pydantic import BaseModel

from orchestrator import (
    Agent,
    ConfigError,
    InvalidInput,
    Orchestrator,
    OrchestratorError,
    Retry,
    Snooze,
    TaskContext,
    TaskFailed,
    TaskState,
)
from orchestrator.workers.testing import Team
from tests.helpers.guards import keys_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import redis

    from tests.faultkit.servers import RedisServer


class Sum(BaseModel):
    """A result with a type of its own."""

    total: int


agent = Agent("adder")


@agent.skill
async def add(a: int, b: int = 0) -> Sum:
    """Add two numbers."""
    return Sum(total=a + b)


@agent.skill(backoff=3600)
async def fail() -> None:
    """Fail for an hour."""
    raise ValueError("planted")


@agent.skill
async def spread(ctx: TaskContext, count: int) -> list[int]:
    """Add in children."""
    children = [await ctx.submit(add, {"a": number}) for number in range(count)]
    return [(await child.result()).total for child in children]


@pytest.fixture
def make(redis_server: RedisServer, prefix: str) -> Callable[..., Team]:
    """Make a team in the namespace of this test."""
    return partial(Team, url=redis_server.url, prefix=prefix)


# ---------------------------------------------------------------------------------------------------------- life cycle


async def test_a_team_starts_a_server_of_its_own() -> None:
    """Without a URL it brings a Redis along, which is gone after the block."""
    async with Team(agent) as team:
        assert await team.run(add, {"a": 1, "b": 2}) == Sum(total=3)
        url = team.settings.redis.url
    assert url is not None
    assert not await anyio.Path(url.get_secret_value().removeprefix("unix://")).exists()


async def test_a_team_leaves_no_keys(redis_server: RedisServer, redis_client: redis.Redis) -> None:
    """On a server of others it has a namespace of its own, whose keys it removes; also when the block fails."""
    seen: list[str] = []

    async def use(failing: bool) -> None:  # noqa: FBT001
        async with Team(agent, url=redis_server.url) as team:
            await team.run(add, {"a": 1})
            seen.append(team.settings.prefix)
            assert keys_of(redis_client, seen[-1])
            assert not failing, "planted"

    await use(failing=False)
    with pytest.raises(AssertionError, match="planted"):
        await use(failing=True)
    assert seen[0] != seen[1]
    assert [keys_of(redis_client, prefix) for prefix in seen] == [[], []]


async def test_a_team_with_a_given_namespace_keeps_its_keys(make: Callable[..., Team]) -> None:
    """A second team finds what the first has left, as after a restart."""
    async with make() as team:
        handle = await team.orc.submit(add, {"a": 5})
    async with make(agent) as team:
        await team.drain()
        assert await team.orc.task(handle.id).result(1) == {"total": 5}


@pytest.mark.parametrize("raised", [ValueError("planted"), KeyboardInterrupt()], ids=["error", "interrupt"])
async def test_what_a_test_raises_comes_out_as_it_is(make: Callable[..., Team], raised: BaseException) -> None:
    """Not inside an exception group, whose message hides it."""
    with pytest.raises(type(raised)) as caught:
        async with make(agent):
            raise raised
    assert caught.value is raised


async def test_a_team_that_cannot_start_says_why(make: Callable[..., Team]) -> None:
    """A setting that does not exist, a limit that nobody defined, a lifespan that fails: each comes out as it is."""

    @asynccontextmanager
    async def broken(agent: Agent) -> AsyncIterator[None]:
        if agent.name == "lost":
            raise RuntimeError("no database")
        yield

    with pytest.raises(ConfigError, match=r"did you mean queue\.max_tasks"):
        await make(agent, settings={"queue.max_task": 1}).__aenter__()
    with pytest.raises(ConfigError, match="nowhere"):
        await make(Agent("limited", limits=["nowhere"])).__aenter__()
    with pytest.raises(RuntimeError, match="no database"):
        await make(Agent("lost", lifespan=broken)).__aenter__()


async def test_a_lifespan_that_fails_at_the_end_fails_the_test(make: Callable[..., Team]) -> None:
    """What an agent's clean-up raises is not lost."""

    @asynccontextmanager
    async def untidy(_: Agent) -> AsyncIterator[None]:
        yield
        raise RuntimeError("not closed")

    async def use() -> None:
        async with make(Agent("untidy", lifespan=untidy)):
            pass

    with pytest.raises(RuntimeError, match="not closed"):
        await use()


async def test_a_team_must_be_open(make: Callable[..., Team]) -> None:
    """Before and after the block its methods say what is missing; a block within its own block is refused."""
    team = make(agent)
    with pytest.raises(OrchestratorError, match="does not run"):
        _ = team.orc
    async with team:
        with pytest.raises(OrchestratorError, match="open already"):
            await team.__aenter__()
    with pytest.raises(OrchestratorError, match="does not run"):
        team.submitted()


def test_a_team_needs_asyncio(make: Callable[..., Team]) -> None:
    """On another event loop, or on none, it says what to do; so does a single attempt."""
    from orchestrator.workers.testing import run_skill

    for start in (make(agent).__aenter__(), run_skill(add, {"a": 1})):
        with pytest.raises(OrchestratorError, match="fixture `anyio_backend` that returns"):
            start.send(None)


async def test_a_team_leaves_signals_alone(make: Callable[..., Team]) -> None:
    """Ctrl-C belongs to the test runner."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with make(agent):
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_a_team_has_as_many_workers_as_asked_for(make: Callable[..., Team]) -> None:
    """Each counts as a process: with one slot each, two tasks run on two workers."""
    both, workers = anyio.Event(), set[str]()
    single = Agent("single", concurrency=1)

    @single.skill
    async def meet(ctx: TaskContext) -> str:
        workers.add(ctx.worker)
        if len(workers) == 2:
            both.set()
        await both.wait()
        return ctx.worker

    async with make(single, workers=2) as team:
        handles = [await team.orc.submit(meet) for _ in range(2)]
        assert {await handle.result(5) for handle in handles} == workers
    assert len(workers) == 2


async def test_settings_reach_the_whole_team(make: Callable[..., Team]) -> None:
    """Named limits for the workers, caps for the client, also for one that the code under test opens."""
    named = Agent("named", limits=["model"])

    @named.skill
    async def ask() -> str:
        return "asked"

    async with make(named, settings={"limits": {"model": "10/s"}, "queue.max_args_bytes": 20}) as team:
        assert await team.run(ask) == "asked"
        async with Orchestrator(settings=team.settings) as theirs:
            assert await (await theirs.submit(ask)).result(5) == "asked"
            with pytest.raises(InvalidInput, match="more than the 20 allowed"):
                await theirs.submit(ask, {"a": "x" * 20})


# ----------------------------------------------------------------------------------------------------------- running


async def test_a_run_returns_what_the_handler_returns(make: Callable[..., Team]) -> None:
    """Typed with a skill, plain with a name; options are those of a submit."""
    async with make(agent) as team:
        assert await team.run(add, {"a": 1}) == Sum(total=1)
        assert await team.run("add", {"a": 1}, session="101", tags=["x"]) == {"total": 1}
        assert await team.run(spread, {"count": 3}) == [0, 1, 2]
        assert team.submitted("add", session="101")[0].tags == ("x",)


async def test_a_run_that_fails_shows_the_handlers_traceback(make: Callable[..., Team]) -> None:
    """The error says why, a note shows where."""
    once = Agent("once")

    @once.skill(max_attempts=1)
    async def stumble() -> None:
        raise ValueError("planted here")

    async with make(once) as team:
        with pytest.raises(TaskFailed, match="ValueError: planted here") as failed:
            await team.run(stumble)
    (note,) = failed.value.__notes__
    assert 'raise ValueError("planted here")' in note


async def test_a_run_that_can_never_start_is_told_at_once(make: Callable[..., Team]) -> None:
    """A skill that nobody has fails the test without a wait, with the name and the cause."""
    async with make(agent) as team:
        with anyio.fail_after(2):
            with pytest.raises(
                AssertionError, match=r"can never start:\n  ad\(a=1\) \[ready\]: parked: no live agent has"
            ):
                await team.run("ad", {"a": 1}, within=30)
            with pytest.raises(AssertionError, match=r"add\(\) agent='nobody' \[ready\]: "):
                await team.run("add", agent="nobody", within=30)


async def test_a_run_that_takes_too_long_tells_what_is_left(make: Callable[..., Team]) -> None:
    """The error names what the task waits for."""
    async with make(agent) as team:
        with pytest.raises(TimeoutError, match=r"work is left after 0\.1 s:\n  fail\(\) \[scheduled\]: .*starts at"):
            await team.run(fail, within=0.1)


# ----------------------------------------------------------------------------------------------------------- draining


async def test_a_drain_waits_for_all_that_can_run(make: Callable[..., Team]) -> None:
    """Children, slow handlers and retries without a fixed delay have ended; what waits for a time stays."""
    busy, runs = Agent("busy", concurrency=4), list[str]()

    @busy.skill
    async def tree(ctx: TaskContext, depth: int) -> None:
        runs.append("tree")
        if depth:
            for _ in range(2):
                await ctx.submit("tree", {"depth": depth - 1})
        await anyio.sleep(0.02)

    @busy.skill
    async def flaky(ctx: TaskContext) -> int:
        runs.append("flaky")
        if ctx.attempt < 3:
            raise ValueError("again")
        return ctx.attempt

    @busy.skill
    async def later() -> None:
        runs.append("later")

    async with make(busy, workers=2) as team:
        await team.orc.submit(tree, {"depth": 3})
        await team.orc.submit(flaky)
        waits = await team.orc.submit(later, delay=30)
        await team.drain()
        assert (runs.count("tree"), runs.count("flaky"), runs.count("later")) == (15, 3, 0)
        assert [str(task.state) for task in team.submitted("flaky")] == ["succeeded"]
        assert (await waits.info()).state is TaskState.SCHEDULED


async def test_a_drain_of_nothing_returns_at_once(make: Callable[..., Team]) -> None:
    """An idle team is drained."""
    async with make(agent) as team:
        await team.drain(0)
        await team.drain(skip_time=True)


async def test_a_drain_that_does_not_end_tells_what_is_left(make: Callable[..., Team]) -> None:
    """A handler that hangs fails the drain with its task in the message."""
    stuck = Agent("stuck")

    @stuck.skill
    async def hang(name: str) -> None:
        await anyio.sleep_forever()

    async with make(stuck) as team:
        await team.orc.submit(hang, {"name": "x"})
        with pytest.raises(
            TimeoutError, match=r"work is left after 0\.1 s:\n  hang\(name='x'\) \[assigned\]: .* runs it"
        ):
            await team.drain(0.1)


async def test_a_drain_of_what_can_never_start_fails_at_once(make: Callable[..., Team]) -> None:
    """Skipping time does not help a task that nobody can take, either, unless it expires."""
    async with make(agent) as team:
        handle = await team.orc.submit("unknown")
        for skip_time in (False, True):
            with anyio.fail_after(2), pytest.raises(AssertionError, match="this can never start"):
                await team.drain(30, skip_time=skip_time)
        await handle.cancel()
        await team.drain()


async def test_a_team_without_workers_takes_submits(make: Callable[..., Team]) -> None:
    """To see what code under test submits, nobody has to run it."""
    async with make() as team:
        await team.orc.submit("whatever", {"n": 1})
        team.assert_submitted("whatever", args={"n": 1}, times=1)


async def test_agents_that_submit_without_end_are_found(make: Callable[..., Team]) -> None:
    """The bound of a drain ends it with the skill's name; a higher one lets as many run."""
    endless, runs = Agent("endless"), list[int]()

    @endless.skill
    async def again(ctx: TaskContext, until: int) -> None:
        runs.append(1)
        if len(runs) < until:
            # Its own client: children of children are bounded anyway.
            await team.orc.submit("again", {"until": until}, key=f"{ctx.task_id}+")

    @endless.skill
    async def nap(ctx: TaskContext) -> None:
        raise Snooze(0)

    async with make(endless) as team:
        await team.orc.submit(again, {"until": 10_000})
        with pytest.raises(AssertionError, match=r"\d\d attempts started and .* so far: \d+ of 'again'\. An agent"):
            await team.drain(at_most=20)
    runs.clear()
    async with Team(endless) as team:
        await team.orc.submit(again, {"until": 30})
        await team.drain(at_most=30)
        assert len(runs) == 30
        await team.orc.submit(nap)
        with pytest.raises(AssertionError, match="submits or retries without end never drains"):
            await team.drain(at_most=50)


# ------------------------------------------------------------------------------------------------- what was submitted


async def test_submitted_tasks_are_listed(make: Callable[..., Team]) -> None:
    """By whomever, in order, with what they were submitted with and where they are."""
    async with make(agent) as team:
        root = await team.orc.submit(spread, {"count": 2}, session="101", key="k", priority="high")
        await team.drain()
        waits = await team.orc.submit("x", {"deep": {"er": [1]}}, agent="adder", delay=60, tags=["t"])
        first, one, two, last = team.submitted()
        assert (first.id, first.skill, first.args, first.key, first.priority) == (
            root.id,
            "spread",
            {"count": 2},
            "k",
            1,
        )
        assert [(task.parent, task.args, task.session) for task in (one, two)] == [
            (root.id, {"a": 0}, "101"),
            (root.id, {"a": 1}, "101"),
        ]
        assert first.state is one.state is TaskState.SUCCEEDED
        assert (last.agent, last.tags, last.state) == ("adder", ("t",), TaskState.SCHEDULED)
        assert last.due_at == (await waits.info()).due_at is not None


async def test_submitted_tasks_are_asserted_on(make: Callable[..., Team]) -> None:
    """By skill or its name, a part of the arguments, the session, the number; each fails with what was submitted."""
    async with make(agent) as team:
        for number in range(3):
            await team.orc.submit(add, {"a": 1, "b": number}, session=str(number))
        assert [task.args["b"] for task in team.assert_submitted(add, args={"a": 1}, times=3)] == [0, 1, 2]
        team.assert_submitted("add", args={"b": 1}, session="1", times=1)
        team.assert_submitted()
        team.assert_not_submitted(spread)
        team.assert_not_submitted(add, session="9")
        with pytest.raises(
            AssertionError, match=r"'add' with \{'b': 9\} was not submitted; submitted were:\n  add\(a=1"
        ):
            team.assert_submitted(add, args={"b": 9})
        with pytest.raises(AssertionError, match="was 3 times submitted, expected once"):
            team.assert_submitted(add, times=1)
        with pytest.raises(AssertionError, match="'add' was 3 times submitted, expected none"):
            team.assert_not_submitted(add)
        await team.drain()
        team.assert_submitted(add, times=3)


async def test_many_submitted_tasks_are_listed(make: Callable[..., Team]) -> None:
    """More than one page of keys."""
    from orchestrator import Submission

    async with make() as team:
        await team.orc.submit_many([Submission("x", {"n": number}) for number in range(1200)])
        assert [task.args["n"] for task in team.submitted("x")] == list(range(1200))


async def test_a_task_left_running_is_told(make: Callable[..., Team]) -> None:
    """What a handler starts and forgets is named after the block; a team that leaves nothing has no leaks."""
    forgetful, running = Agent("forgetful"), list[Any]()

    @forgetful.skill
    async def forget(leave: bool) -> None:  # noqa: FBT001
        if leave:
            import asyncio

            running.append(asyncio.create_task(asyncio.sleep(30), name="left behind"))

    async with make(forgetful) as team:
        await team.run(forget, {"leave": False})
    assert team.leaks == ()
    async with make(forgetful) as team:
        await team.run(forget, {"leave": True})
    (leak,) = team.leaks
    assert "left behind" in leak
    running[0].cancel()


async def test_retries_with_a_delay_wait_for_their_time(make: Callable[..., Team]) -> None:
    """A drain does not wait for them, and says nothing; skipping time runs them."""
    patient = Agent("patient")

    @patient.skill
    async def try_later(ctx: TaskContext) -> int:
        if ctx.attempt < 3:
            raise Retry(delay=3600)
        return ctx.attempt

    async with make(patient) as team:
        handle = await team.orc.submit(try_later)
        await team.drain()
        assert (await handle.info()).attempts == 1
        await team.drain(skip_time=True)
        assert await handle.result(1) == 3
        assert await team.run(try_later, skip_time=True) == 3
