"""What holds a session or an agent alone keeps every other writer out: tasks, editors and clients wait, or are told."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, Cause, LockBusy, LockLost, Occupied, TaskContext, TaskFailed, TaskState
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    import redis

    from orchestrator import Workspace
    from orchestrator.locks.execution import LockMode
    from tests.helpers.local_team import LocalTeam


class Holder:
    """An agent whose skill `hold` writes, waits and writes again."""

    def __init__(self, lock: LockMode) -> None:
        self.agent = Agent("holder", concurrency=4)
        self.has_begun, self.go_on = anyio.Event(), anyio.Event()

        @self.agent.skill(lock=lock)
        async def hold(ctx: TaskContext) -> None:
            await self.write(ctx, "begins")
            self.has_begun.set()
            await self.go_on.wait()
            await self.write(ctx, "ends")

    async def write(self, ctx: TaskContext, word: str) -> None:
        """Change the session and the agent."""
        await ctx.workspace.append("log", word)
        await ctx.agent_state.set({"by": word})


@asynccontextmanager
async def held(team: LocalTeam, lock: LockMode = "session") -> AsyncIterator[Holder]:
    """Let a task hold session `s`, or its agent, until it is told to go on."""
    holder = Holder(lock)
    other = Agent("other", concurrency=8)

    @other.skill
    async def note(ctx: TaskContext, word: str) -> None:
        await ctx.workspace.append("log", word)

    @holder.agent.skill
    async def state(ctx: TaskContext, word: str) -> None:
        await ctx.agent_state.set({"by": word})

    await team.work(holder.agent, other)
    handle = await team.orc.submit("hold", session="s")
    with anyio.fail_after(TIMEOUT_S):
        await holder.has_begun.wait()
    yield holder
    holder.go_on.set()
    await handle.result(TIMEOUT_S)


async def log_of(team: LocalTeam) -> list[Any]:
    """The entries of the session's log."""
    return [entry.value for entry in await team.orc.workspace("s").log("log")]


async def by_task(team: LocalTeam) -> None:
    """A task with the default lock."""
    await (await team.orc.submit("note", {"word": "other"}, session="s")).result(2 * TIMEOUT_S)


async def by_editor(team: LocalTeam) -> None:
    """A program outside of a task."""
    async with team.orc.workspace("s").edit() as ws:
        await ws.append("log", "other")


async def by_lease(team: LocalTeam) -> None:
    """A program with a named lock."""
    async with team.orc.locks("session:s").hold("n") as lease:
        await team.orc.workspace("s").under(lease).append("log", "other")


WRITERS = pytest.mark.parametrize("write", [by_task, by_editor, by_lease])


@WRITERS
async def test_writers_wait_for_the_session(
    team: LocalTeam, write: Callable[[LocalTeam], Coroutine[Any, Any, None]]
) -> None:
    """A write of any other authority waits while a task holds the session, and is made when that has ended."""
    async with anyio.create_task_group() as group, held(team) as holder:
        group.start_soon(write, team)
        await wait_for_waiters(team, 1)
        assert await log_of(team) == ["begins"]
        holder.go_on.set()
    assert await log_of(team) == ["begins", "ends", "other"]
    assert await team.orc.locks("session:s").list() == []


@WRITERS
async def test_writers_pass_a_plain_task(
    team: LocalTeam, write: Callable[[LocalTeam], Coroutine[Any, Any, None]]
) -> None:
    """Twin: a task with the default lock keeps no writer out."""
    async with held(team, "task"):
        await write(team)
    assert await log_of(team) == ["begins", "other", "ends"]


async def wait_for_waiters(team: LocalTeam, count: int) -> None:
    """Wait until so many wait for the session."""

    async def waiting() -> bool:
        lock = await team.orc.locks("session:s").list()
        return any(one.at == "exec" and one.waiting == count for one in lock)

    await wait_for(waiting, f"{count} wait", TIMEOUT_S)


async def test_patience_ends(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A write that has waited long enough is refused, names the holder, and leaves neither change nor waiter."""
    async with held(team):
        began_s = time.monotonic()
        async with team.orc.workspace("s").edit(wait=0.1) as ws:
            with pytest.raises(Occupied) as refused:
                await ws.append("log", "other")
        assert 0.1 <= time.monotonic() - began_s < 2
        assert refused.value.scope == "session:s"
        assert refused.value.holder.startswith("task ")
        assert refused.value.left_ms > 0
        assert str(refused.value).endswith("nothing was changed")
        assert isinstance(refused.value, LockBusy)
        assert redis_client.zcard(team.services.keys.scope("session", "s").key("exec:waiters")) == 0
    assert await log_of(team) == ["begins", "ends"]


async def test_handler_that_is_refused_is_put_off(team: LocalTeam) -> None:
    """A handler that lets `Occupied` pass runs again later; no attempt counts, and `why` names the holder."""
    agent, attempts = Agent("late"), list[int]()

    @agent.skill
    async def write(ctx: TaskContext) -> None:
        attempts.append(ctx.attempt)
        async with ctx.workspace.edit(wait=0.05) as ws:
            await ws.append("log", "late")

    async with held(team):
        await team.work(agent)
        handle = await team.orc.submit("write", session="s")

        async def put_off() -> bool:
            return (await handle.status()).state is TaskState.SCHEDULED

        await wait_for(put_off, "it is put off", TIMEOUT_S)
        status = await handle.status()
        assert status.detail.cause is Cause.SNOOZED
        assert "session 's' is held alone by task" in status.why
    await handle.result(2 * TIMEOUT_S)
    assert attempts == [1, 1]


async def test_awaited_child_that_writes(team: LocalTeam) -> None:
    """A child that its parent waits for, and that changes what its parent holds alone, fails and says why."""
    agent = Agent("ed", concurrency=4)

    @agent.skill
    async def child(ctx: TaskContext) -> None:
        await ctx.workspace.append("log", "child")

    @agent.skill(lock="session")
    async def parent(ctx: TaskContext) -> str:
        try:
            await (await ctx.submit(child)).result(TIMEOUT_S)
        except TaskFailed as failed:
            return failed.reason
        return "ran"

    await team.work(agent)
    said = await (await team.orc.submit(parent, session="s")).result(2 * TIMEOUT_S)
    assert "a deadlock" in said
    assert await log_of(team) == []


async def test_state_of_an_agent_that_is_held(team: LocalTeam) -> None:
    """With lock="agent" clients and other tasks wait to change the agent's state; the holder changes it."""
    async with anyio.create_task_group() as group, held(team, "agent") as holder:
        assert await team.orc.agents.state("holder") == {"by": "begins"}

        async def change() -> None:
            await team.orc.agents.set_state("holder", {"by": "client"})

        group.start_soon(change)
        handle = await team.orc.submit("state", {"word": "task"})

        async def waiting() -> bool:
            (lock,) = [one for one in await team.orc.locks("agent:holder").list() if one.at == "exec"]
            return lock.waiting == 2

        await wait_for(waiting, "both wait", TIMEOUT_S)
        holder.go_on.set()
    await handle.result(TIMEOUT_S)
    assert (await team.orc.agents.state("holder"))["by"] in {"client", "task"}


async def test_exclusive_editor(team: LocalTeam) -> None:
    """An exclusive editor keeps tasks with either lock and other editors out, and writes itself."""
    busy, agent = list[str](), Agent("ed", concurrency=4)

    @agent.skill(lock="session")
    async def alone(ctx: TaskContext) -> None:
        busy.append("alone")
        await ctx.workspace.append("log", "alone")

    @agent.skill
    async def plain(ctx: TaskContext) -> None:
        busy.append("plain")
        await ctx.workspace.append("log", "plain")

    await team.work(agent)
    view = team.orc.workspace("s")
    async with view.edit(exclusive=True) as ws:
        handles = [await team.orc.submit(name, session="s") for name in ("alone", "plain")]
        await wait_for(lambda: "plain" in busy, "it runs", TIMEOUT_S)
        with pytest.raises(Occupied):
            async with view.edit(exclusive=True, wait=0.02):
                pass
        async with view.edit("other", wait=0.02) as other:
            with pytest.raises(Occupied):
                await other.append("log", "other")
        async with ws.edit("nested") as nested:
            await nested.append("log", "nested")
        await ws.append("log", "editor")
        assert busy == ["plain"]
    for handle in handles:
        await handle.result(2 * TIMEOUT_S)
    log = await log_of(team)
    assert log[:2] == ["nested", "editor"]
    assert sorted(log[2:]) == ["alone", "plain"]


async def test_editors_of_one_name_take_turns(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Editors of one name exclude each other, those of other names do not; one that froze is refused."""
    view = team.orc.workspace("s")
    with pytest.raises(LockLost):  # noqa: PT012 - the block of the editor that froze raises
        async with view.edit("desk") as first, view.edit("shop") as shop:
            await shop.append("log", "shop")
            with pytest.raises(LockBusy, match="edit:desk"):
                async with view.edit("desk", wait=0.02):
                    pass
            redis_client.delete(team.services.keys.scope("session", "s").key("lock:edit%3Adesk"))
            async with view.edit("desk") as second:
                await second.append("log", "second")
                with pytest.raises(LockLost, match="nothing was changed"):
                    await first.append("log", "first")
    assert await log_of(team) == ["shop", "second"]


async def test_holder_writes_under_its_other_locks(team: LocalTeam) -> None:
    """A task that holds the session changes it under a named lock of its own and as an editor too."""
    agent = Agent("ed")

    @agent.skill(lock="session")
    async def work(ctx: TaskContext) -> None:
        async with ctx.locks.hold("n") as lease:
            await ctx.workspace.under(lease, wait=0).append("log", "lease")
        async with ctx.workspace.edit(wait=0) as ws:
            await ws.append("log", "editor")

    await team.work(agent)
    await (await team.orc.submit("work", session="s")).result(TIMEOUT_S)
    assert await log_of(team) == ["lease", "editor"]


async def test_many_writers_wait_and_all_write(team: LocalTeam) -> None:
    """Twenty writers wait behind two exclusive editors: all of them write, each once."""
    view = team.orc.workspace("s")

    async def write(number: int) -> None:
        async with view.edit(f"w{number}") as ws:
            await ws.append("log", number)

    async def alone() -> None:
        async with view.edit(exclusive=True) as ws:
            await ws.append("log", "alone")

    async with anyio.create_task_group() as group, view.edit(exclusive=True) as ws:
        await ws.append("log", "first")
        for number in range(20):
            group.start_soon(write, number)
        await wait_for_waiters(team, 20)
        group.start_soon(alone)
        await wait_for_waiters(team, 21)
        freed_s = time.monotonic()
    assert time.monotonic() - freed_s < TIMEOUT_S
    log = await log_of(team)
    assert log[0] == "first"
    assert sorted(map(str, log[1:])) == sorted([*map(str, range(20)), "alone"])


async def test_cancelled_writer_leaves_the_line(team: LocalTeam, redis_client: redis.Redis) -> None:
    """A writer that is cancelled while it waits leaves no waiter, and holds up no later one."""
    view = team.orc.workspace("s")

    async def write(ws: Workspace) -> None:
        await ws.append("log", "never")

    async with held(team), view.edit() as ws:
        async with anyio.create_task_group() as group:
            group.start_soon(write, ws)
            await wait_for_waiters(team, 1)
            group.cancel_scope.cancel()
        assert redis_client.zcard(team.services.keys.scope("session", "s").key("exec:waiters")) == 0
    assert await log_of(team) == ["begins", "ends"]
