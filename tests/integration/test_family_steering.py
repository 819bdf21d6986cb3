"""Families of tasks: cancel and retry take the whole tree, and what is told of a tree."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

import orchestrator.sync
from orchestrator import (
    Agent,
    ChildFailed,
    InvalidInput,
    NotFound,
    Stopped,
    Submission,
    SubmitRefused,
    TaskCancelled,
    TaskContext,
    UpgradeUnfinished,
)
from orchestrator.core.errors import TaskFailed
from orchestrator.core.formats import Feature, Floor
from orchestrator.tasks.model import CancelStatus, RequeueStatus, TaskState
from orchestrator.testing.waiting import wait_for
from orchestrator.why.model import Cause
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.terminal import Done, Terminal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from tests.helpers.local_team import LocalTeam


@pytest.fixture
def orc(team: LocalTeam, tmp_path: Path) -> Callable[..., Awaitable[Done]]:
    """Runs a command in a thread, while the team goes on."""
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)

    async def typed(*arguments: str) -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, *arguments))

    return typed


class Tree:
    """An agent whose tasks submit two children each, and await them; the lowest ones wait for ever."""

    def __init__(self) -> None:
        self.agent = Agent("tree", concurrency=20)
        self.lowest = 0
        self.refused: list[str] = []

        @self.agent.skill
        async def grow(ctx: TaskContext, levels: int) -> None:
            if levels == 0:
                self.lowest += 1
                await anyio.sleep_forever()
            children = await ctx.submit_many(Submission("grow", {"levels": levels - 1}) for _ in range(2))
            await ctx.submit("nobody_can")
            try:
                async for child in ctx.as_completed(children):
                    await child.result()
            finally:
                with anyio.CancelScope(shield=True):
                    try:
                        await ctx.submit("too_late")
                    except SubmitRefused as refused:
                        self.refused.append(str(refused))


async def grown(team: LocalTeam) -> tuple[Tree, str]:
    """A tree of 1 + 2 + 4 running tasks, with three that wait."""
    tree = Tree()
    await team.work(tree.agent)
    handle = await team.orc.submit("grow", {"levels": 2})

    async def has_grown() -> bool:
        return tree.lowest == 4 and len(await team.orc.tasks.tree(handle.id)) == 10

    await wait_for(has_grown, "the tree to grow")
    return tree, handle.id


async def states(team: LocalTeam, top: str) -> dict[TaskState, int]:
    """How many tasks of a tree are in each state."""
    rows = await team.orc.tasks.tree(top)
    return {state: sum(row.state is state for row in rows) for state in {row.state for row in rows}}


@pytest.mark.parametrize("how", ["handle", "client", "blocking", "command", "job"])
async def test_cancel_takes_the_tree(team: LocalTeam, orc: Callable[..., Awaitable[Done]], how: str) -> None:
    """Running tasks stop and waiting ones end, at every level; a parent that stops submits no other child."""
    tree, top = await grown(team)
    assert await states(team, top) == {TaskState.RUNNING: 7, TaskState.READY: 3}
    if how == "handle":
        assert await team.orc.task(top).cancel("enough") is CancelStatus.SIGNALLED
    elif how == "client":
        assert await team.orc.cancel(team.orc.task(top), "enough") is CancelStatus.SIGNALLED
    elif how == "command":
        assert (await orc("tasks", "cancel", top, "--with-children", "--reason", "enough")).code == 0
    elif how == "job":
        sent = await team.orc.admin.cancel([top], reason="enough")
        await sent.receipts()
    else:

        def cancel() -> CancelStatus:
            with orchestrator.sync.Orchestrator(settings=team.settings) as blocking:
                return blocking.cancel(top, "enough")

        assert await anyio.to_thread.run_sync(cancel) is CancelStatus.SIGNALLED

    async def all_ended() -> bool:
        return await states(team, top) == {TaskState.CANCELLED: 10}

    await wait_for(all_ended, "every task to end")
    assert len(tree.refused) == 3
    assert all("is told to stop, so it may not submit children" in text for text in tree.refused)
    below = (await team.orc.tasks.tree(top))[-1]
    assert below.reason.startswith(f"with task {top}: ")
    assert "enough" in below.reason


async def test_only_this(team: LocalTeam, orc: Callable[..., Awaitable[Done]]) -> None:
    """On demand the children of a cancelled task go on."""
    _, top = await grown(team)
    assert (await orc("tasks", "cancel", top, "--only-this", "--with-children")).code == 2
    assert (await orc("tasks", "cancel", top, "--only-this", "--wait")).code == 0
    assert await states(team, top) == {TaskState.CANCELLED: 1, TaskState.RUNNING: 6, TaskState.READY: 3}
    (child, *_) = await team.orc.tasks.find(parent=top)
    await (await team.orc.admin.cancel([child.id], only_this=True)).receipts()
    await team.orc.cancel(child.id, only_this=True)

    async def child_ended() -> bool:
        return (await states(team, top))[TaskState.CANCELLED] == 2

    await wait_for(child_ended, "the child to end")
    await team.orc.cancel(top)


@pytest.mark.parametrize("settings", [{}, {"control__secret": "a secret for the tests"}], indirect=True)
async def test_stop_takes_the_tree(team: LocalTeam) -> None:
    """A stop named by any task of a family interrupts all of it, holds back what waits, and nothing else."""
    tree, top = await grown(team)
    below = [row.id for row in await team.orc.tasks.tree(top) if row.depth == 2 and row.skill == "grow"]
    other = await team.orc.submit("grow", {"levels": 0})
    await wait_for(lambda: tree.lowest == 5, "another task to run")
    stop = await team.orc.admin.stop(family=below[0], now=True, reason="too dear", actor="ann")
    receipts = await stop.receipts(until_done=True)
    assert receipts.done
    found = await states(team, top)
    assert not {TaskState.RUNNING, TaskState.ASSIGNED} & found.keys(), found
    assert (await other.status()).state is TaskState.RUNNING

    async def held() -> bool:
        keys = team.services.keys
        return bool(await team.services.store.execute("ZCARD", keys.held(f"family:{top}")) == 7)

    await wait_for(held, "the supervisor to hold the tree back")
    status = await team.orc.task(below[1]).status()
    assert status.detail.cause is Cause.STOPPED
    assert f"family '{top}' is stopped" in status.why
    assert f"`orc start --family {top}` ends that" in status.why
    assert tree.lowest == 5
    await team.orc.admin.start(family=below[0])
    await wait_for(lambda: tree.lowest == 9, "the lowest ones to run again")


async def test_a_stopped_family_takes_no_more_tasks(team: LocalTeam, orc: Callable[..., Awaitable[Done]]) -> None:
    """With `refuse` nothing more is submitted below it; the command line takes the beginning of an id."""
    agent, asked, refused = Agent("parent", concurrency=3), anyio.Event(), list[str]()
    begun = list[str]()

    @agent.skill
    async def submit_late(ctx: TaskContext) -> str:
        begun.append(ctx.task_id)
        await asked.wait()
        try:
            await ctx.submit("later")
        except Stopped as stopped:
            refused.append(stopped.slot)
            return "refused"
        return "accepted"

    await team.work(agent)
    stopped_one, other = await team.orc.submit("submit_late"), await team.orc.submit("submit_late")
    await wait_for(lambda: len(begun) == 2, "both to run")
    done = await orc("stop", "--family", stopped_one.id[:-4], "--refuse", "--reason", "a test")
    assert done.code == 0, done
    asked.set()
    assert await stopped_one.result(timeout=TIMEOUT_S) == "refused"
    assert refused == [f"stop:family:{stopped_one.id}"]
    assert await other.result(timeout=TIMEOUT_S) == "accepted"
    assert f"family:{stopped_one.id}" in (await orc("status")).out
    assert (await orc("start", "--family", stopped_one.id)).code == 0
    with pytest.raises(NotFound, match="does not exist"):
        await team.orc.admin.stop(family="01a20b3c-8edb-710f-8780-7ca34f674ff4")


async def test_a_family_is_held_before_it_starts(team: LocalTeam) -> None:
    """A waiting task of a stopped family is not assigned, a large queue behind it is; it expires, and is cancelled."""
    agent, begun = Agent("one"), list[int]()

    @agent.skill
    async def note(number: int) -> int:
        begun.append(number)
        return number

    first, second = [await team.orc.submit("note", {"number": number}) for number in range(2)]
    for each in (first, second):
        await team.orc.admin.stop(family=each.id)
    await team.work(agent)
    assert await (await team.orc.submit("note", {"number": 2})).result(timeout=TIMEOUT_S) == 2
    assert begun == [2]
    assert await first.cancel() is CancelStatus.ENDED
    await team.orc.admin.start(family=second.id)
    assert await second.result(timeout=TIMEOUT_S) == 1
    assert begun == [2, 1]


async def test_older_programs_know_no_stop_of_a_family(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused until they are gone, because they would start its tasks."""
    handle = await team.orc.submit("later")
    monkeypatch.setattr(Floor, "admits", lambda _, feature: feature is not Feature.FAMILY_STOPS)
    with pytest.raises(UpgradeUnfinished, match="a stop of a family"):
        await team.orc.admin.stop(family=handle.id)


async def test_failed_child(team: LocalTeam) -> None:
    """A child that is a dead letter ends its parent at the first attempt; a retry with children repairs both."""
    agent, ran, works, attempts = Agent("family", concurrency=5), list[str](), list[bool](), list[int]()

    @agent.skill(max_attempts=1)
    async def child() -> int:
        ran.append("child")
        if not works:
            raise ValueError("childish")
        return 7

    @agent.skill(max_attempts=5)
    async def parent(ctx: TaskContext) -> int:
        ran.append("parent")
        async with anyio.create_task_group() as group:
            for handle in await ctx.submit_many([Submission("child"), Submission("child")]):
                group.start_soon(handle.result)
        return await (await ctx.submit("child")).result(as_=int)

    @agent.skill(max_attempts=2, backoff=0)
    async def patient(ctx: TaskContext) -> str:
        try:
            await (await ctx.submit("child")).result()
        except ChildFailed as failed:
            return failed.reason
        return ""

    @agent.skill(max_attempts=3, backoff=0, retry_on=[ChildFailed])
    async def stubborn(ctx: TaskContext) -> None:
        attempts.append(ctx.attempt)
        await (await ctx.submit("child")).result()

    await team.work(agent)
    handle = await team.orc.submit("parent")
    with pytest.raises(TaskFailed, match=r"ChildFailed: task .* failed: ValueError: childish"):
        await handle.result(TIMEOUT_S)
    assert ran == ["parent", "child", "child"]
    assert await (await team.orc.submit("patient")).result(TIMEOUT_S) == "ValueError: childish"
    with pytest.raises(TaskFailed):
        await (await team.orc.submit("stubborn")).result(TIMEOUT_S)
    assert attempts == [1, 2, 3]
    works.append(True)
    assert await team.orc.retry(handle, with_children=True) is RequeueStatus.REQUEUED
    assert await handle.result(TIMEOUT_S) == 7
    assert await states(team, handle.id) == {TaskState.SUCCEEDED: 4}
    assert await handle.retry(with_children=True) is RequeueStatus.REFUSED


async def test_retry_command_takes_the_tree(team: LocalTeam, orc: Callable[..., Awaitable[Done]]) -> None:
    """The command retries what ended without a result, the children first, and not what succeeded."""
    agent, works = Agent("family", concurrency=5), list[bool]()

    @agent.skill(max_attempts=1)
    async def leaf(good: bool = False) -> None:  # noqa: FBT001, FBT002
        if not (good or works):
            raise ValueError("not yet")

    @agent.skill
    async def parent(ctx: TaskContext) -> None:
        good = await ctx.submit("leaf", {"good": True})
        bad = await ctx.submit("leaf")
        await good.result()
        await bad.result()

    await team.work(agent)
    handle = await team.orc.submit("parent")
    with pytest.raises(TaskFailed):
        await handle.result(TIMEOUT_S)
    assert (await orc("tasks", "retry", "--with-children", "--all", "--yes")).code == 2
    works.append(True)
    done = await orc("tasks", "retry", handle.id, "--with-children")
    assert (done.code, "2 requeued" in done.out) == (0, True)
    await handle.result(TIMEOUT_S)
    assert await states(team, handle.id) == {TaskState.SUCCEEDED: 3}


async def test_what_is_told(team: LocalTeam, orc: Callable[..., Awaitable[Done]]) -> None:
    """Parent, root and depth are in lists, in what is known of a task, and in the tree on the command line."""
    _, top = await grown(team)
    rows = await team.orc.tasks.tree(top)
    assert [row.depth for row in rows] == [0, 1, 2, 2, 2, 1, 2, 2, 2, 1]
    assert {row.root for row in rows} == {top}
    by_id = {row.id: row for row in rows}
    assert all(row.parent in by_id and by_id[row.parent].depth == row.depth - 1 for row in rows[1:])
    assert [row.id for row in await team.orc.tasks.tree(top, limit=4)] == [
        top,
        *[row.id for row in rows if row.depth == 1],
    ]
    lowest = next(row for row in rows if row.depth == 2)
    info = await team.orc.task(lowest.id).info()
    assert (info.parent, info.root, info.depth) == (lowest.parent, top, 2)
    shown = json.loads((await orc("tasks", "show", lowest.id, "-o", "json")).out)
    assert (shown["parent"], shown["root"], shown["depth"]) == (lowest.parent, top, 2)
    assert "root" not in (await orc("tasks", "show", top)).out
    listed = json.loads((await orc("tasks", "list", "--state", "running", "-o", "json")).out)["items"]
    assert {(row["id"], row["root"], row["depth"]) for row in listed} == {
        (row.id, top, row.depth) for row in rows if row.state is TaskState.RUNNING
    }
    tree = await orc("tasks", "show", top, "--tree")
    assert [line.split()[0] for line in tree.out.splitlines()[1:]] == [row.id for row in rows]
    assert f"\n    {lowest.id}" in tree.out
    items = json.loads((await orc("tasks", "show", top, "--tree", "-o", "json")).out)["items"]
    assert [item["id"] for item in items] == [row.id for row in rows]
    assert (await orc("tasks", "show", "0190f6e5-4d2a-7c3b-9f10-2b6c8d4e1a55", "--tree")).code == 3
    assert (await orc("tasks", "show", top, "--tree", "--load")).code == 2
    with pytest.raises(InvalidInput, match="task id"):
        await team.orc.tasks.tree("x")
    await team.orc.cancel(top)


async def test_why_of_a_parent(team: LocalTeam, orc: Callable[..., Awaitable[Done]]) -> None:
    """It names the child that is in the way, also below another one, and why that one waits."""
    agent, running = Agent("family", concurrency=5), anyio.Event()

    @agent.skill
    async def busy() -> None:
        running.set()
        await anyio.sleep_forever()

    @agent.skill
    async def middle(ctx: TaskContext) -> None:
        await (await ctx.submit("unheard_of")).result()

    @agent.skill
    async def parent(ctx: TaskContext) -> None:
        children = [await ctx.submit("busy"), await ctx.submit("middle")]
        async for child in ctx.as_completed(children):
            await child.result()

    await team.work(agent)
    handle = await team.orc.submit("middle")
    upper = await team.orc.submit("parent")

    async def both_wait() -> bool:
        details = [(await one.status()).detail for one in (handle, upper)]
        return all(why.cause is Cause.CHILDREN and "unheard_of" in why.text for why in details[:1]) and all(
            why.cause is Cause.CHILDREN and why.missing for why in details
        )

    await wait_for(both_wait, "the parents to wait")
    await running.wait()
    (stuck,) = await team.orc.tasks.find(parent=handle.id)
    why = (await handle.status()).detail
    assert (why.child, why.child_cause) == (stuck.id, Cause.NO_AGENT)
    assert f"; task {stuck.id}: " in why.text
    assert "unheard_of" in (await orc("tasks", "why", handle.id)).out
    assert "unheard_of" in (await handle.info()).why
    for one in (handle, upper):
        await one.cancel()
        with pytest.raises(TaskCancelled):
            await one.result(TIMEOUT_S)
