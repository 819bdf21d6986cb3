"""Sessions and children that real programs made: what the client, the blocking client and commands tell of them."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread
import pytest

import orchestrator.sync
from orchestrator import Agent, InvalidInput, Submission, TaskContext
from orchestrator.tasks.model import TaskState
from orchestrator.testing.waiting import wait_for
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


async def test_a_family(team: LocalTeam, orc: Callable[..., Awaitable[Done]]) -> None:
    """Children are known by their parent, in order, with their states, while it runs and when it has ended."""
    agent, go_on, born = Agent("family", concurrency=5), anyio.Event(), list[str]()

    @agent.skill
    async def child(number: int) -> int:
        return number

    @agent.skill
    async def parent(ctx: TaskContext) -> int:
        handles = [await ctx.submit("child", {"number": number}) for number in range(3)]
        born.extend(handle.id for handle in handles)
        born.append((await ctx.submit("nobody_can", {})).id)
        total = 0
        for handle in handles:
            total += await handle.result(as_=int)
        await go_on.wait()
        return total

    await team.work(agent)
    handle = await team.orc.submit("parent", session="s 1")

    async def succeeded() -> bool:
        return len(await team.orc.tasks.find(parent=handle.id, states=["succeeded"])) == 3

    await wait_for(succeeded, "the children to end")
    assert (await handle.info()).children == tuple(born)
    assert {row.state for row in await team.orc.tasks.find(session="s 1") if row.id == handle.id} == {TaskState.RUNNING}
    go_on.set()
    assert await handle.result(timeout=5) == 3
    rows = await team.orc.tasks.find(parent=handle.id)
    assert [row.id for row in rows] == born
    assert [row.state for row in rows] == [TaskState.SUCCEEDED] * 3 + [TaskState.READY]
    assert [row.id for row in await team.orc.tasks.find(parent=handle.id, states=["ready"])] == born[3:]
    assert {row.parent for row in rows} == {handle.id}
    assert json.loads((await orc("tasks", "show", handle.id, "-o", "json")).out)["children"] == born
    assert ", ".join(born) in (await orc("tasks", "show", handle.id)).out
    listed = await orc("tasks", "list", "--parent", handle.id, "--state", "succeeded", "-o", "id")
    assert listed.out.split() == born[:3]


async def test_sessions(team: LocalTeam, orc: Callable[..., Awaitable[Done]]) -> None:
    """Sessions are listed by their last activity, each with its tasks, newest first."""
    agent = Agent("worker", concurrency=5)

    @agent.skill
    async def work() -> int:
        return 1

    first = await team.orc.submit("later", session="chat 7")
    handles = await team.orc.submit_many([Submission("work", session="other/x") for _ in range(3)])
    plain = await team.orc.submit("work")
    summaries = await team.orc.tasks.sessions()
    assert [(one.session, one.tasks, one.newest) for one in summaries] == [
        ("other/x", 3, handles[2].id),
        ("chat 7", 1, first.id),
    ]
    await team.orc.submit("later", session="chat 7")
    assert [one.session for one in await team.orc.tasks.sessions()] == ["chat 7", "other/x"]
    await anyio.sleep(0.11)  # the time of an end is known to a tenth of a second
    await team.work(agent)
    for handle in (*handles, plain):
        await handle.result(timeout=5)
    assert [one.session for one in await team.orc.tasks.sessions(limit=1)] == ["other/x"]
    rows = await team.orc.tasks.find(session="other/x")
    assert [row.id for row in rows] == [handle.id for handle in reversed(handles)]
    assert {(row.state, row.agent, row.session) for row in rows} == {(TaskState.SUCCEEDED, "worker", "other/x")}

    listed = json.loads((await orc("sessions", "list", "-o", "json")).out)["items"]
    assert [(one["session"], one["tasks"]) for one in listed] == [("other/x", 3), ("chat 7", 2)]
    assert "SESSION" in (await orc("sessions", "list")).out
    shown = json.loads((await orc("sessions", "show", "chat 7", "-o", "json")).out)
    assert (shown["tasks"], shown["states"]) == (2, {"ready": 2})
    assert (await orc("sessions", "show", "nobody")).code == 3
    assert (await orc("tasks", "list", "--session", "other/x", "-o", "id")).out.split() == [row.id for row in rows]
    assert (await orc("tasks", "list", "--session", "a", "--parent", first.id)).out == ""


async def test_blocking_client(team: LocalTeam) -> None:
    """The blocking client reads the same lists."""
    handle = await team.orc.submit("later", session="s")

    def read() -> tuple[list[str], list[str]]:
        with orchestrator.sync.Orchestrator(settings=team.settings) as orc:
            return [row.id for row in orc.tasks.find(session="s")], [one.session for one in orc.tasks.sessions()]

    assert await anyio.to_thread.run_sync(read) == ([handle.id], ["s"])


async def test_invalid_questions(team: LocalTeam) -> None:
    """What is no limit, no state, no session and no task is refused."""
    tasks = team.orc.tasks
    for asked, message in (
        (tasks.find(limit=0), "limit 0 is not between"),
        (tasks.sessions(limit=10_001), "limit 10001 is not between"),
        (tasks.find(states=["done"]), "'done' is not a valid TaskState"),
        (tasks.find(session=""), "session"),
        (tasks.find(parent="x"), "task id"),
        (tasks.find(session="s", parent="x"), "not both"),
    ):
        with pytest.raises(InvalidInput, match=message):
            await asked
