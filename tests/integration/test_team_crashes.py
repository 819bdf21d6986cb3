"""Crashes at named steps: really felt, the work goes on with another worker, nothing of the dead one arrives."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import anyio
import pytest

from orchestrator import Agent, InvalidInput, TaskContext, TaskFailed
from orchestrator.testing.temporary_pool import TemporaryPool
from orchestrator.workers.testing import Team
from orchestrator.workers.testing.crashes import Step
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.faultkit.servers import RedisServer

STEPS = get_args(Step)
RUNS: dict[str, list[int]] = {"start": [2], "stored": [1]}
"""Which attempts the handler sees when its worker crashes; in all other cases the first and the second."""


@pytest.fixture
def make(redis_server: RedisServer, prefix: str) -> Callable[..., Team]:
    """Make a team in the namespace of this test."""
    return partial(Team, url=redis_server.url, prefix=prefix)


class RecordingAgent:
    """An agent that takes every step once, and what its handler saw."""

    def __init__(self) -> None:
        self.agent = Agent("witness", concurrency=5)
        self.seen: list[TaskContext] = []
        self.agent.skill(self.act)
        self.agent.skill(self.child)

    async def act(self, ctx: TaskContext) -> int:
        """Submit, progress, emit, return."""
        self.seen.append(ctx)
        child = await ctx.submit("child")
        await ctx.progress(1)
        await ctx.emit("x")
        return int(await child.result())

    @staticmethod
    async def child() -> int:
        """Answer."""
        return 7

    @property
    def attempts(self) -> list[int]:
        """Which attempts the handler saw."""
        return [ctx.attempt for ctx in self.seen]


@pytest.mark.every_server
@pytest.mark.parametrize("step", STEPS)
async def test_a_crash_is_felt_and_survived(make: Callable[..., Team], step: Step) -> None:
    """The task has a death and a higher generation, another worker ends it, and its child is one and the same."""
    recording = RecordingAgent()
    async with make(recording.agent) as team:
        crash = team.crash("act", at=step)
        handle = await team.orc.submit("act")
        assert await handle.result(5) == 7
        await team.drain()
        assert crash.happened
        found = await handle.info()
        assert recording.attempts == RUNS.get(step, [1, 2])
        assert len(found.deaths) == (0 if step == "stored" else 1)
        if step != "stored":
            assert f"crash of 'act' at {step!r}" in found.deaths[0]
        if len(recording.seen) == 2:
            first, second = recording.seen
            assert first.worker != second.worker
            assert int(first._delivery.generation) < int(second._delivery.generation)
        team.assert_submitted("child", times=1)
        assert await team.run("child") == 7, "the worker was replaced"


async def test_without_a_crash_nobody_dies(make: Callable[..., Team]) -> None:
    """The same task, undisturbed: one attempt, no death."""
    recording = RecordingAgent()
    async with make(recording.agent) as team:
        handle = await team.orc.submit("act")
        assert await handle.result(5) == 7
        assert (await handle.info()).deaths == ()
        assert recording.attempts == [1]


async def test_a_stored_verdict_is_not_lost_with_its_worker(make: Callable[..., Team]) -> None:
    """The task has ended once when its worker vanishes, and the worker is another one afterwards."""
    recording = RecordingAgent()
    async with make(recording.agent) as team:
        team.crash("act", at="stored")
        handle = await team.orc.submit("act")
        assert await handle.result(5) == 7
        await team.drain()
        await team.run("act")
        assert recording.seen[0].worker != recording.seen[1].worker
        assert recording.attempts == [1, 1]


async def test_the_nth_time_is_meant(make: Callable[..., Team]) -> None:
    """Steps are counted over all tasks of the skill, from when the crash was planned."""
    agent, seen = Agent("loud"), list[tuple[int, int]]()

    @agent.skill
    async def speak(ctx: TaskContext) -> None:
        for number in range(4):
            await ctx.emit(number)
            seen.append((ctx.attempt, number))

    async with make(agent) as team:
        await team.run(speak)
        crash = team.crash(speak, at="emit", nth=6)
        await team.run(speak)
        assert (crash.happened, crash.seen) == (False, 4)
        await team.run(speak)
        assert (crash.happened, crash.seen) == (True, 6)
    assert seen[8:] == [(1, 0), *[(2, number) for number in range(4)]]


async def test_two_crashes_come_one_after_the_other(make: Callable[..., Team]) -> None:
    """Each has its own death; the third makes a dead letter, as poison does."""
    recording = RecordingAgent()
    async with make(recording.agent) as team:
        crashes = [team.crash("act", at="emit") for _ in range(2)]
        handle = await team.orc.submit("act")
        await team.drain(skip_time=True)
        assert await handle.result(1) == 7
        assert all(crash.happened for crash in crashes)
        assert len((await handle.info()).deaths) == 2
        for _ in range(3):
            team.crash("act", at="result")
        with pytest.raises(TaskFailed, match="deaths"):
            await team.run("act", skip_time=True)


async def test_neighbours_die_with_their_worker_alone(make: Callable[..., Team]) -> None:
    """What else the crashed worker ran has a death too; what another worker ran knows nothing of it."""
    agent, gate, where = Agent("pair", concurrency=2), anyio.Event(), dict[str, list[str]]()

    @agent.skill
    async def hold(ctx: TaskContext) -> str:
        where.setdefault(ctx.task_id, []).append(ctx.worker)
        await gate.wait()
        return ctx.worker

    @agent.skill
    async def die(ctx: TaskContext) -> str:
        where.setdefault(ctx.task_id, []).append(ctx.worker)
        await ctx.emit("x")
        return ctx.worker

    async with make(agent, workers=2) as team:
        neighbours = [await team.orc.submit(hold) for _ in range(3)]
        await wait_for(lambda: len(where) == 3, "all slots but one")
        team.crash(die, at="emit")
        dying = await team.orc.submit(die)
        await wait_for(lambda: len([place for places in where.values() for place in places]) > 4, "what runs again")
        gate.set()
        await team.drain(skip_time=True)
        dead_worker = where[dying.id][0]
        for handle in neighbours:
            deaths = (await handle.info()).deaths
            assert len(deaths) == (where[handle.id][0] == dead_worker)
            assert await handle.result(1) != dead_worker


async def test_nothing_of_the_dead_reaches_redis(make: Callable[..., Team]) -> None:
    """Clean-up code runs, for this process lives on, but neither its children nor its output arrive."""
    agent, refused = Agent("clean"), list[str]()

    @agent.skill
    async def work(ctx: TaskContext) -> str:
        if ctx.attempt > 1:
            return "done"
        try:
            await ctx.submit("child")
        finally:
            with anyio.CancelScope(shield=True):
                for attempt in (ctx.submit("late"), ctx.emit("late")):
                    try:
                        await attempt
                    except Exception as refusal:  # noqa: BLE001 - whatever it is, it must come
                        refused.append(type(refusal).__name__)
        return "not reached"

    @agent.skill
    async def child() -> None:
        """Do nothing."""

    async with make(agent) as team:
        team.crash(work, at="submit")
        handle = await team.orc.submit(work)
        assert await handle.result(5) == "done"
        await team.drain()
        assert len(refused) == 2
        assert [task.skill for task in team.submitted()] == ["work", "child"]
        assert [chunk.data async for chunk in handle.output()] == []


async def test_a_thread_does_not_hold_up_the_crash(make: Callable[..., Team]) -> None:
    """A `def` handler beside the crash cannot be stopped, so it is left; its task runs again."""
    agent, gate, runs = Agent("threaded"), threading.Event(), list[int]()

    @agent.skill
    def block(ctx: TaskContext) -> int:
        runs.append(ctx.attempt)
        if ctx.attempt == 1:
            gate.wait(10)
        return ctx.attempt

    @agent.skill
    async def die() -> str:
        return "died once"

    async with make(agent) as team:
        blocked = await team.orc.submit(block)
        await wait_for(lambda: runs == [1], "the thread")
        team.crash(die, at="result")
        assert await team.run(die) == "died once"
        assert await blocked.result(5) == 2
        gate.set()


async def test_a_parent_and_a_child_that_died_together_both_end(make: Callable[..., Team]) -> None:
    """Tasks with a death run alone, but a child runs beside the parent that waits for it."""
    agent, gate = Agent("family", concurrency=4), anyio.Event()

    @agent.skill
    async def parent(ctx: TaskContext, depth: int) -> int:
        if depth == 0:
            if ctx.attempt == 1:
                gate.set()
                await ctx.emit("x")
            return 1
        return 1 + int(await (await ctx.submit("parent", {"depth": depth - 1})).result())

    async with make(agent) as team:
        team.crash(parent, at="emit")
        handle = await team.orc.submit(parent, {"depth": 2})
        assert await handle.result(5) == 3
        assert [len((await team.orc.task(task.id).info()).deaths) for task in team.submitted()] == [1, 1, 1]


async def test_a_crash_that_was_not_reached_fails_the_test(make: Callable[..., Team]) -> None:
    """Such a test proves nothing; but what the block raises itself comes first."""
    recording = RecordingAgent()

    async def use(failure: Exception | None) -> None:
        async with make(recording.agent) as team:
            team.crash("act", at="emit", nth=3)
            await team.run("act")
            if failure is not None:
                raise failure

    with pytest.raises(AssertionError, match=r"the crash of 'act' at 'emit', time 3 did not happen, .* reached 1x"):
        await use(None)
    with pytest.raises(KeyError):
        await use(KeyError("planted"))


async def test_a_crash_needs_a_step_that_exists(make: Callable[..., Team]) -> None:
    """A wrong name is refused with the right ones."""
    wrong: Any = "finish"
    async with make() as team:
        with pytest.raises(
            InvalidInput, match="no step 'finish' to crash at; use one of start, submit, progress, emit"
        ):
            team.crash("act", at=wrong)
        with pytest.raises(InvalidInput, match="nth counts from 1"):
            team.crash("act", at="start", nth=0)


async def test_many_crashes_under_load_lose_nothing(make: Callable[..., Team]) -> None:
    """Workers vanish again and again while a crowd of tasks runs; each task ends once, with its result."""
    agent, ran = Agent("crowd", concurrency=10), list[int]()

    @agent.skill(max_deaths=50)
    async def work(ctx: TaskContext, number: int) -> int:
        await ctx.emit(number)
        ran.append(number)
        return number

    async with make(agent, workers=2) as team:
        for step in ("start", "emit", "result", "stored"):
            team.crash(work, at=step, nth=10)
        handles = [await team.orc.submit(work, {"number": number}) for number in range(60)]
        await team.drain(skip_time=True)
        assert [await handle.result(1) for handle in handles] == list(range(60))
        assert set(ran) == set(range(60))


async def test_the_server_is_asked_whether_the_dead_are_gone(
    make: Callable[..., Team], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work is given back only when the last connection of the dead worker has ended, or it might swallow more."""
    recording, seen = RecordingAgent(), list[tuple[bool, int]]()
    ask = TemporaryPool.wait_disconnected

    async def watch(self: TemporaryPool, store: Any) -> None:
        await ask(self, store)
        clients = (await self.services.store.execute("CLIENT", "LIST")).decode()
        known = await self.services.store.execute("ZRANGE", self.services.keys.workers, 0, -1)
        seen.append((f"name={store.name}" in clients, len(known)))

    monkeypatch.setattr(TemporaryPool, "wait_disconnected", watch)
    async with make(recording.agent) as team:
        team.crash("act", at="emit")
        assert await team.run("act") == 7
    assert seen == [(False, 1)], "gone from the server, without a deregistration"
