"""Tasks that wait for their session stand in a line and hold no slot: who goes next, and who wakes it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import Agent, TaskContext, TaskFailed, TaskState
from orchestrator.core.ids import new_task_id
from orchestrator.locks import scripts
from orchestrator.locks.model import DropReply, LockProof, TakeStatus, new_nonce
from orchestrator.tasks.scripts import wake
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from orchestrator import TaskHandle
    from orchestrator.store.keys import ScopeKeys
    from tests.helpers.local_team import LocalTeam


class Line:
    """An agent with two slots whose skill `work` needs its session alone."""

    def __init__(self, team: LocalTeam) -> None:
        self.team, self.agent = team, Agent("ed", concurrency=2)
        self.ran: list[str] = []
        self.attempts: list[int] = []
        self.held, self.go_on = anyio.Event(), anyio.Event()

        @self.agent.skill(lock="session")
        async def work(ctx: TaskContext, name: str) -> None:
            self.ran.append(name)
            self.attempts.append(ctx.attempt)
            if name == "holder":
                self.held.set()
                await self.go_on.wait()

    async def hold(self) -> TaskHandle[None]:
        """Start a worker, and let a task hold session `s`."""
        await self.team.work(self.agent)
        handle = await self.team.orc.submit("work", {"name": "holder"}, session="s")
        with anyio.fail_after(TIMEOUT_S):
            await self.held.wait()
        return handle

    async def submit(self, *names: str) -> list[TaskHandle[None]]:
        """Submit tasks of the session one after another; each stands in the line before the next one comes."""
        handles = []
        for name in names:
            handles.append(await self.team.orc.submit("work", {"name": name}, session="s"))
            await wait_until(handles[-1], TaskState.SCHEDULED)
        return handles

    @property
    def keys(self) -> ScopeKeys:
        """The keys of the session."""
        return self.team.services.keys.scope("session", "s")

    async def hold_by_hand(self, ttl_ms: int) -> LockProof:
        """Take the session as a task of another program, which will neither renew nor release it."""
        call = scripts.claim(
            self.keys, lock="exec", task=new_task_id(), generation="1", nonce=new_nonce(), ttl_ms=ttl_ms
        )
        return LockProof(self.keys, "exec", (await self.team.services.store.call(call)).value)


async def wait_until(handle: TaskHandle[None], state: TaskState) -> None:
    """Wait for a state."""

    async def there() -> bool:
        return (await handle.status()).state is state

    await wait_for(there, f"it is {state}", TIMEOUT_S)


async def all_done(handles: list[TaskHandle[None]]) -> None:
    """Wait for the results."""
    for handle in handles:
        await handle.result(TIMEOUT_S)


async def test_waiters_hold_no_slot(team: LocalTeam) -> None:
    """Five tasks wait for a session in an agent with two slots: a task of another session runs at once."""
    line = Line(team)
    holder = await line.hold()
    began_s = time.monotonic()
    waiting = [await team.orc.submit("work", {"name": f"w{n}"}, session="s") for n in range(5)]
    await (await team.orc.submit("work", {"name": "other"}, session="t")).result(TIMEOUT_S)
    assert time.monotonic() - began_s < 1
    assert line.ran == ["holder", "other"]
    line.go_on.set()
    await all_done([holder, *waiting])


async def test_order_of_arrival(team: LocalTeam) -> None:
    """They go on in the order in which they came, each as soon as the one before it has ended; no attempt counts."""
    line = Line(team)
    holder = await line.hold()
    names = [f"w{n}" for n in range(6)]
    waiting = await line.submit(*names)
    freed_s = time.monotonic()
    line.go_on.set()
    await all_done([holder, *waiting])
    assert time.monotonic() - freed_s < 2
    assert line.ran == ["holder", *names]
    assert set(line.attempts) == {1}
    assert (await team.orc.locks("session:s").list()) == []


async def test_newcomer_does_not_overtake(team: LocalTeam) -> None:
    """The lock is kept for the first of the line: one that asks meanwhile goes behind it."""
    line = Line(team)
    holder = await line.hold()
    waiting = await line.submit("first")
    call = scripts.drop(line.keys, rows=[("exec", (await team.orc.locks("session:s").list())[0].nonce)])
    (dropped,) = await team.services.store.call(call)
    assert dropped.wake == f"{waiting[0].id}:{team.services.keys.pool}"
    late = await line.submit("late")
    # The reply to the release was lost, so it is sent again, and names the same task.
    assert await team.services.store.call(call) == [DropReply(released=False, wake=dropped.wake)]
    assert await team.services.store.call(wake(team.services.keys, waiting[0].id))
    await all_done([*waiting, *late])
    line.go_on.set()
    await holder.result(TIMEOUT_S)
    # The holder's worker may have noticed that the lock is gone, and have started it again.
    assert [name for name in line.ran if name != "holder"] == ["first", "late"]


async def test_cancelled_one_is_passed_over(team: LocalTeam) -> None:
    """A task that is cancelled in the line holds up nobody behind it."""
    line = Line(team)
    holder = await line.hold()
    waiting = await line.submit("first", "second", "third")
    for handle in waiting[:2]:
        await handle.cancel()
    line.go_on.set()
    await all_done([holder, waiting[2]])
    assert line.ran == ["holder", "third"]


async def test_lock_that_is_taken_away_wakes_the_line(team: LocalTeam) -> None:
    """An operator releases the lock: the first of the line goes on."""
    line = Line(team)
    holder = await line.hold()
    waiting = await line.submit("first")
    (lock,) = await team.orc.locks("session:s").list()
    assert lock.waiting == 1
    assert await team.orc.locks("session:s").take_away(lock)
    await all_done(waiting)
    line.go_on.set()
    await holder.result(TIMEOUT_S)


async def test_editor_wakes_the_line(team: LocalTeam) -> None:
    """A task waits for an exclusive editor, and goes on when that has ended."""
    line = Line(team)
    await team.work(line.agent)
    async with team.orc.workspace("s").edit(exclusive=True):
        waiting = await line.submit("first")
    await all_done(waiting)


async def test_lock_that_lapsed(team: LocalTeam) -> None:
    """Its holder died without a release, so nothing wakes the line: its first task looks when the lock has lapsed."""
    line = Line(team)
    await team.work(line.agent)
    await line.hold_by_hand(400)
    began_s = time.monotonic()
    await all_done(await line.submit("first"))
    assert time.monotonic() - began_s < 2


async def test_newcomer_wakes_the_line_of_a_lapsed_lock(team: LocalTeam) -> None:
    """A task that finds the lock lapsed and a line before it wakes the first of that."""
    line = Line(team)
    await team.work(line.agent)
    proof = await line.hold_by_hand(60_000)
    waiting = await line.submit("first", "second")
    await team.services.store.execute("DEL", proof.keys.key("exec"))
    newcomer = await team.orc.submit("work", {"name": "newcomer"}, session="s")
    await all_done([*waiting, newcomer])
    assert line.ran == ["first", "second", "newcomer"]


async def test_child_that_is_awaited_later(team: LocalTeam) -> None:
    """The child stands in the line when its parent begins to wait for it: it is told at once."""
    agent = Agent("ed", concurrency=4)

    @agent.skill(lock="session")
    async def child() -> str:
        return "ran"

    @agent.skill(lock="session")
    async def parent(ctx: TaskContext) -> str:
        handle = await ctx.submit(child)
        await wait_until(handle, TaskState.SCHEDULED)  # type: ignore[arg-type]
        with pytest.raises(TaskFailed) as failed:
            await handle.result(TIMEOUT_S)
        return failed.value.reason

    await team.work(agent)
    assert "a deadlock" in await (await team.orc.submit(parent, session="s")).result(2 * TIMEOUT_S)


async def test_changes_and_tasks_take_turns(team: LocalTeam) -> None:
    """A change waits and two tasks stand in the line: all of them get their turn within a second."""
    line = Line(team)
    holder = await line.hold()
    waiting = await line.submit("first", "second")

    async def change() -> None:
        async with team.orc.workspace("s").edit() as ws:
            await ws.append("log", 1)
        line.ran.append("change")

    async with anyio.create_task_group() as group:
        group.start_soon(change)

        async def all_wait() -> bool:
            (lock,) = [one for one in await team.orc.locks("session:s").list() if one.at == "exec"]
            return lock.waiting == 3

        await wait_for(all_wait, "all wait", TIMEOUT_S)
        line.go_on.set()
        freed_s = time.monotonic()
    await all_done([holder, *waiting])
    assert time.monotonic() - freed_s < 1.5
    assert [name for name in line.ran if name != "change"] == ["holder", "first", "second"]
    assert line.ran.index("change") <= 2


async def test_dead_worker_wakes_the_line(team: LocalTeam) -> None:
    """The script that frees the locks of a dead attempt names the first of the line, also when it is sent twice."""
    line = Line(team)
    await team.work(line.agent)
    proof = await line.hold_by_hand(60_000)
    (first,) = await line.submit("first")
    task, generation = proof.value.split(":")[1:3]
    for released in (True, False):
        (reply,) = await team.services.store.call(scripts.free(line.keys, rows=[("exec", task, generation)]))
        assert (reply.released, reply.wake) == (released, f"{first.id}:{team.services.keys.pool}")
    call = scripts.claim(line.keys, lock="exec", task=new_task_id(), generation="1", nonce=new_nonce(), ttl_ms=1000)
    assert (await team.services.store.call(call)).status is TakeStatus.HELD
