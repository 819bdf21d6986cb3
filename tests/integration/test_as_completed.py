"""Handles of many tasks as these end: order, time limits, leaving early, closing, handles of other clients' tasks."""

from __future__ import annotations

import gc
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, assert_type

import anyio
import anyio.lowlevel
import pytest

from orchestrator import Agent, Reject
from orchestrator.client import replies
from orchestrator.client.client import Orchestrator
from orchestrator.client.handle import TaskHandle
from orchestrator.core.errors import InvalidInput, OrchestratorError, ServerRefused, TaskCancelled, TaskFailed
from orchestrator.core.ids import new_task_id
from orchestrator.tasks.submission import Submission
from tests.helpers.counting import CommandCounter
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import redis

    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam


def make_counter() -> Agent:
    """An agent that ends tasks in a known order, and in every way."""
    agent = Agent("counter", concurrency=20)

    @agent.skill
    async def after(seconds: float) -> float:
        await anyio.sleep(seconds)
        return seconds

    @agent.skill
    async def refuse(reason: str) -> int:
        raise Reject(reason)

    return agent


@pytest.fixture
async def orc(settings: Settings) -> AsyncIterator[Orchestrator]:
    """A client without anybody who works."""
    async with Orchestrator(settings=settings) as client:
        yield client


async def collect(loop: AsyncIterator[TaskHandle[Any]], into: list[TaskHandle[Any]]) -> None:
    """Go through a loop to its end."""
    async for handle in loop:
        into.append(handle)  # noqa: PERF401 - a loop that fails keeps what it gave


async def fail_at_first(loop: AsyncIterator[TaskHandle[Any]]) -> None:
    """Leave a loop by an error."""
    async for _ in loop:
        1 / 0  # noqa: B018


def waits(client: Orchestrator) -> int:
    """How many tasks somebody of this client waits for."""
    return len(client._replies._waiting)


async def test_handles_come_as_their_tasks_end(team: LocalTeam) -> None:
    """Neither in the order of the list nor of the submits, each once; `result()` needs no waiting then."""
    agent = Agent("sleeper")

    @agent.skill
    async def nap(seconds: float) -> float:
        await anyio.sleep(seconds)
        return seconds

    await team.work(agent)
    handles = [await team.orc.submit(nap, {"seconds": seconds}) for seconds in (0.6, 0.01, 0.3)]
    given: list[float] = []
    async for handle in team.orc.as_completed([*handles, handles[1]]):
        assert_type(handle, TaskHandle[float])
        assert handle in handles
        with anyio.move_on_after(0) as at_once:
            given.append(await handle.result())
        assert not at_once.cancelled_caught
    assert given == [0.01, 0.3, 0.6]


async def test_those_that_have_ended_come_first(team: LocalTeam) -> None:
    """In the order of the list, without a question to Redis."""
    await team.work(make_counter())
    slow = await team.orc.submit("after", {"seconds": 0.4})
    ended = await team.orc.submit_many([Submission("after", {"seconds": 0.0})] * 3)
    for handle in reversed(ended):
        await handle.result(TIMEOUT_S)
    assert [handle async for handle in team.orc.as_completed([slow, *ended])] == [*ended, slow]
    assert [handle async for handle in team.orc.as_completed(ended)] == ended
    nothing: list[TaskHandle[Any]] = []
    assert [handle async for handle in team.orc.as_completed(nothing)] == []


async def test_every_end_is_an_end(team: LocalTeam) -> None:
    """Success, dead letter, cancellation and a task that is not there: `result()` tells or raises."""
    await team.work(make_counter())
    good = await team.orc.submit("after", {"seconds": 0.0})
    bad = await team.orc.submit("refuse", {"reason": "no"})
    unwanted = await team.orc.submit("after", {"seconds": 60}, delay=60)
    lost = team.orc.task(new_task_id())
    await unwanted.cancel("enough")
    found: dict[str, object] = {}
    async for handle in team.orc.as_completed([good, bad, unwanted, lost], timeout=TIMEOUT_S):
        try:
            found[handle.id] = await handle.result(0)
        except (TaskFailed, TaskCancelled) as ended:
            found[handle.id] = ended.reason
        except OrchestratorError as gone:
            found[handle.id] = type(gone).__name__
    assert found == {good.id: 0.0, bad.id: "no", unwanted.id: "enough", lost.id: "TaskExpired"}


async def test_tasks_of_other_clients(team: LocalTeam) -> None:
    """A handle that was made from an id comes too; one of another client is refused with what to write."""
    await team.work(make_counter())
    other = await team.client()
    theirs = await other.submit("after", {"seconds": 0.1})
    own = await team.orc.submit("after", {"seconds": 0.0})
    known = team.orc.task(theirs.id)
    assert [handle async for handle in team.orc.as_completed([known, own], timeout=TIMEOUT_S)] == [own, known]
    with pytest.raises(InvalidInput, match=rf"made by another client; give orc\.task\('{theirs.id}'\)"):
        team.orc.as_completed([own, theirs])
    strange: Any = [own.id]
    with pytest.raises(InvalidInput, match="takes the handles of tasks, not str"):
        team.orc.as_completed(strange)


async def test_a_time_limit_counts_for_all(orc: Orchestrator) -> None:
    """The builtin TimeoutError says how many have not ended; what is no duration is refused at the call."""
    handles = await orc.submit_many([Submission("after", {"seconds": 0.0})] * 3)
    await handles[1].cancel()
    for timeout in (0.1, timedelta(seconds=0.1)):
        given: list[TaskHandle[Any]] = []
        began_s = time.monotonic()
        with pytest.raises(TimeoutError, match=r"2 of 3 tasks have not ended after 0\.1 s; they go on"):
            await collect(orc.as_completed(handles, timeout=timeout), given)
        assert given == [handles[1]]
        assert 0.09 < time.monotonic() - began_s < 1
    with pytest.raises(InvalidInput, match="timeout must not be negative"):
        orc.as_completed(handles, timeout=-1)


async def test_without_time_it_asks_once(orc: Orchestrator, redis_client: redis.Redis) -> None:
    """With a timeout of 0 those that have ended come, although nobody has waited for them before."""
    handles = await orc.submit_many([Submission("after", {"seconds": 0.0})] * 3)
    await handles[1].cancel()
    counter = CommandCounter(redis_client)
    given: list[TaskHandle[Any]] = []
    with pytest.raises(TimeoutError, match="2 of 3 tasks have not ended after 0 s"):
        await collect(orc.as_completed(handles, timeout=0), given)
    assert given == [handles[1]]
    assert counter.calls()["hmget"] <= 6
    with pytest.raises(TaskCancelled):
        await orc.task(handles[1].id).result(0)
    with pytest.raises(TimeoutError, match="has not ended after 0 s"):
        await handles[0].result(0)


async def test_a_loop_that_is_left_early_leaves_nothing(team: LocalTeam) -> None:
    """By break, by an error and by a cancellation: nobody is waited for any more, and handles still work."""
    await team.work(make_counter())
    handles = await team.orc.submit_many([Submission("after", {"seconds": s}) for s in (0.0, 60, 60)])
    async for first in team.orc.as_completed(handles):
        assert first is handles[0]
        break
    await wait_for(lambda: waits(team.orc) == 0, "break to be noticed")
    with pytest.raises(ZeroDivisionError):
        await fail_at_first(team.orc.as_completed(handles))
    gc.collect()
    await wait_for(lambda: waits(team.orc) == 0, "the error to be noticed")
    with anyio.move_on_after(0.05):
        async for _ in team.orc.as_completed(handles):
            pass
    await anyio.lowlevel.checkpoint()
    assert waits(team.orc) == 0
    never = team.orc.as_completed(handles)
    del never
    assert await handles[0].result(0) == 0.0


async def test_two_loops_and_a_wait_for_the_same_tasks(team: LocalTeam) -> None:
    """Each gets every end; one that leaves takes nothing from the others."""
    await team.work(make_counter())
    handles = await team.orc.submit_many([Submission("after", {"seconds": s}) for s in (0.05, 0.1, 0.2)])
    seen: dict[str, list[float]] = {}

    async def loop(name: str, upto: int) -> None:
        seen[name] = []
        async for handle in team.orc.as_completed(handles):
            seen[name].append(await handle.result())
            if len(seen[name]) == upto:
                break

    async def wait() -> None:
        seen["wait"] = [await handle.result() for handle in handles]

    async with anyio.create_task_group() as group:
        group.start_soon(loop, "all", 3)
        group.start_soon(loop, "one", 1)
        group.start_soon(wait)
    assert seen == {"all": [0.05, 0.1, 0.2], "one": [0.05], "wait": [0.05, 0.1, 0.2]}
    await wait_for(lambda: waits(team.orc) == 0, "all waits to end")


async def test_closing_ends_the_loop(settings: Settings) -> None:
    """A loop under way and one that begins later get an error; what had ended before is still given."""
    orc = await Orchestrator(settings=settings).open()
    handles = await orc.submit_many([Submission("after", {"seconds": 0.0})] * 2)
    await handles[0].cancel()
    given: list[TaskHandle[Any]] = []
    later = orc.as_completed(handles)

    async def loop() -> None:
        with pytest.raises(OrchestratorError, match="the client was closed while a result was awaited"):
            await collect(orc.as_completed(handles), given)

    async with anyio.create_task_group() as group:
        group.start_soon(loop)
        await wait_for(lambda: given, "the one that has ended")
        await orc.aclose()
    assert given == handles[:1]
    with pytest.raises(OrchestratorError, match="the client that made this handle is closed"):
        async for _ in later:
            pass
    with pytest.raises(OrchestratorError, match="not open"):
        orc.as_completed(handles)


@pytest.mark.parametrize("settings", [{"redis__command_timeout_s": 0.5}], indirect=True)
async def test_a_record_that_cannot_be_read_holds_up_no_other(orc: Orchestrator, redis_client: redis.Redis) -> None:
    """Another type lies where a record was: its handle comes and raises, and so does `result()`; the others end."""
    handles = await orc.submit_many([Submission("after", {"seconds": 0.0})] * 3)
    broken = orc.services.keys.task(handles[0].id)
    redis_client.delete(broken)
    redis_client.set(broken, "not ours", ex=60)
    await handles[1].cancel()
    await handles[2].cancel()
    given = {handle.id async for handle in orc.as_completed(handles, timeout=TIMEOUT_S)}
    assert given == {handle.id for handle in handles}
    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        await handles[0].result(0)
    foreign = await Orchestrator(settings=orc.services.settings).open()
    with pytest.raises(ServerRefused, match="WRONGTYPE"):
        await foreign.task(handles[0].id).result(TIMEOUT_S)
    await foreign.aclose()


async def test_many_foreign_tasks_are_looked_up_in_turn(
    orc: Orchestrator, settings: Settings, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, Redis is asked for a few in each look, and each gets its turn."""
    monkeypatch.setattr(replies, "POLL_CHUNK", 10)
    monkeypatch.setattr(replies, "FOREIGN_POLL_EVERY_S", 0.02)
    handles = await orc.submit_many([Submission("after", {"seconds": 0.0})] * 100)
    async with Orchestrator(settings=settings) as other:
        foreign = [other.task(handle.id) for handle in handles]
        given: list[TaskHandle[Any]] = []
        first = CommandCounter(redis_client)
        async with anyio.create_task_group() as group:
            group.start_soon(collect, other.as_completed(foreign), given)
            await wait_for(
                lambda: waits(other) == 100 and first.calls().get("hmget", 0) >= 100, "the first look at all of them"
            )
            counter, began_s = CommandCounter(redis_client), time.monotonic()
            await anyio.sleep(0.2)
            calls = counter.calls()["hmget"]
            assert calls <= 10 * ((time.monotonic() - began_s) / replies.FOREIGN_POLL_EVERY_S + 2)
            began_s = time.monotonic()
            for handle in handles[50:]:  # others, which do not end, are before them
                await handle.cancel()
            await wait_for(lambda: len(given) == 50, "those that have ended")
            assert time.monotonic() - began_s < replies.POLL_EVERY_S / 2, "they had to wait for the look at all"
            assert waits(other) == 50, "those that have ended are looked up again"
            for handle in handles[:50]:
                await handle.cancel()
        assert sorted(handle.id for handle in given) == [handle.id for handle in handles]


async def test_who_waits_for_nothing_looks_for_nothing(orc: Orchestrator, redis_client: redis.Redis) -> None:
    """After the last wait has ended the client sends nothing any more."""
    handle = await orc.submit("after", {"seconds": 0.0})
    foreign = orc.task(new_task_id())
    await handle.cancel()
    assert [one async for one in orc.as_completed([handle, foreign])] != []
    assert waits(orc) == 0
    await anyio.sleep(0.05)
    counter = CommandCounter(redis_client)
    await anyio.sleep(0.6)
    assert counter.calls() == {}
