"""`orc.session(s).events()`: tasks, children, output and workspace of a session in one order, which can be resumed."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

import orchestrator.sync
from orchestrator import Agent, InvalidInput, Submission, TaskContext
from orchestrator.client import session as module
from orchestrator.core.errors import ServerUnavailable

if TYPE_CHECKING:
    from orchestrator.client.session import SessionEvent
    from tests.helpers.local_team import LocalTeam


async def read(team: LocalTeam, session: str = "s 1", after: str | None = None) -> list[SessionEvent]:
    """All events behind a position, until none has come for a while."""
    async with aclosing(team.orc.session(session).events(after, block=0.5)) as events:
        return [event async for event in events]


def told(events: list[SessionEvent]) -> list[tuple[str | None, str]]:
    """Task and kind of each."""
    return [(event.task, event.kind) for event in events]


async def play(team: LocalTeam) -> tuple[str, str]:
    """A parent that emits and whose child emits, and changes of the workspace; ids of parent and child."""
    agent, children = Agent("writer", concurrency=5), list[str]()

    @agent.skill
    async def write() -> str:
        return "done"

    @agent.skill
    async def child(ctx: TaskContext) -> None:
        for number in range(5):
            await ctx.emit({"token": number})

    @agent.skill
    async def parent(ctx: TaskContext) -> None:
        await ctx.emit({"begin": True})
        handle = await ctx.submit("child")
        children.append(handle.id)
        await handle.result()
        await anyio.sleep(0.005)  # the workspace has a stream of its own, and two events of one ms have no order
        await ctx.workspace.set("title", "new")
        await ctx.emit({"end": True})

    await team.work(agent)
    handle = await team.orc.submit("parent", session="s 1")
    await handle.result(timeout=10)
    await (await team.orc.submit("write", session="other")).result(timeout=10)
    return handle.id, children[0]


async def test_one_stream(team: LocalTeam) -> None:
    """Output of parent and child, ends and changes of the workspace come in the order of their times, each once."""
    parent, child = await play(team)
    events = await read(team)
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert {event.task for event in events} == {parent, child, None}
    expected = [
        (parent, "output"),
        *[(child, "output")] * 5,
        (child, "succeeded"),
        (None, "patch"),
        (parent, "output"),
        (parent, "succeeded"),
    ]
    assert [each for each in told(events) if each in expected] == expected
    tokens = [event.event.data for event in events if event.task == child and event.kind == "output"]  # type: ignore[union-attr]
    assert tokens == [{"token": number} for number in range(5)]


async def test_resuming(team: LocalTeam) -> None:
    """A reader goes on behind any event, and sees what the first one saw."""
    await play(team)
    events = await read(team)
    for at in range(0, len(events), 3):
        rest = await read(team, after=events[at].id)
        assert [(event.id, event.kind, event.event) for event in rest] == [
            (event.id, event.kind, event.event) for event in events[at + 1 :]
        ]


async def test_many_entries_of_many_tasks(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that are read in parts are merged as if they were read at once."""
    agent = Agent("writer", concurrency=10)

    @agent.skill
    async def talk(ctx: TaskContext, number: int) -> None:
        for token in range(30):
            await ctx.emit([number, token])
            await anyio.sleep(0.001)

    await team.work(agent)
    handles = await team.orc.submit_many([Submission("talk", {"number": n}, session="s 1") for n in range(8)])
    for handle in handles:
        await handle.result(timeout=20)
    async with team.orc.workspace("s 1").edit(agent="ada") as ws:
        for number in range(5):
            await ws.set("title", number)
    whole = await read(team)
    assert sum(event.kind == "output" for event in whole) == 8 * 30
    monkeypatch.setattr(module, "_BUFFERED", 3)
    parts = await read(team)
    assert told(parts) == told(whole)
    assert [event.id for event in parts] == [event.id for event in whole]


async def test_live(team: LocalTeam) -> None:
    """A follower that waits sees a task that is submitted later, and each of its tokens, before the task has ended."""
    agent, go_on = Agent("writer", concurrency=2), anyio.Event()

    @agent.skill
    async def talk(ctx: TaskContext) -> None:
        await ctx.emit("first")
        await go_on.wait()
        await ctx.emit("second")

    await team.work(agent)
    await (await team.orc.submit("talk", session="other")).cancel()
    seen: list[SessionEvent] = []

    async def submit() -> None:
        await team.orc.submit("talk", session="s 1")

    with anyio.fail_after(20):
        async with aclosing(team.orc.session("s 1").events("$")) as events, anyio.create_task_group() as group:
            group.start_soon(submit)
            async for event in events:
                seen.append(event)
                if event.kind == "output":
                    go_on.set()
                if event.kind == "succeeded":
                    break
    assert [event.event.data for event in seen if event.kind == "output"] == ["first", "second"]  # type: ignore[union-attr]
    assert seen[-1].kind == "succeeded"


async def test_retry_of_a_task_that_had_ended(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that found only the end of a task sees its next attempt after a retry."""
    monkeypatch.setattr(module, "RETRIED_S", 0.05)
    agent, kinds = Agent("writer"), list[str]()

    @agent.skill
    async def write() -> str:
        return "done"

    handle = await team.orc.submit("write", session="s 1")
    await handle.cancel()
    with anyio.fail_after(20):
        async with aclosing(team.orc.session("s 1").events()) as events:
            async for event in events:
                kinds.append(event.kind)
                if event.kind == "cancelled":
                    await handle.retry()
                elif event.kind == "ready":
                    await team.work(agent)
                elif event.kind == "succeeded":
                    break
    assert kinds == ["cancelled", "ready", "assigned", "succeeded"]


async def test_entries_that_are_not_shown(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader goes on behind full pages of which nothing is to be shown, and waits when all entries are too young."""
    await play(team)
    events = await read(team)
    monkeypatch.setattr(module, "_BUFFERED", 1)
    assert [event.id for event in await read(team, after=events[-2].id)] == [events[-1].id]
    now_ms, asked = module._SessionReader.now_ms, list[int]()

    async def early_ms(reader: module._SessionReader) -> int:
        asked.append(1)
        return await now_ms(reader) if len(asked) > 3 else 1

    monkeypatch.setattr(module._SessionReader, "now_ms", early_ms)
    with anyio.fail_after(20):
        assert [event.id for event in await read(team)] == [event.id for event in events]


async def test_outage(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader goes on when Redis answers again, and shows no event twice."""
    await play(team)
    events = await read(team)
    fill, failures = module._SessionReader._fill, [1, 2, 3]

    async def failing(reader: module._SessionReader) -> None:
        await fill(reader)
        if failures:
            failures.pop()
            raise ServerUnavailable("no answer")

    monkeypatch.setattr(module._SessionReader, "_fill", failing)
    assert [event.id for event in await read(team)] == [event.id for event in events]
    assert not failures


async def test_now_and_blocking_client(team: LocalTeam) -> None:
    """`$` leaves out what has happened; the blocking client iterates in the same way."""
    await play(team)
    assert await read(team, after="$") == []

    def block() -> list[str]:
        with orchestrator.sync.Orchestrator(settings=team.settings) as orc:
            return [event.id for event in orc.session("s 1").events(block=0.5)]

    assert await anyio.to_thread.run_sync(block) == [event.id for event in await read(team)]


async def test_invalid_positions(team: LocalTeam) -> None:
    """What is no id of an event of a session, and no session, is refused."""
    for wrong in ("x", "1-1", "1-1/none/1-1", "1-1//"):
        with pytest.raises(InvalidInput, match="not the id of an event of a session"):
            await read(team, after=wrong)
    with pytest.raises(InvalidInput):
        team.orc.session("")
