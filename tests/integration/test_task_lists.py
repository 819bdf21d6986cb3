"""Lists of tasks by a filter: their indices, pages and cursors, from Python, the blocking client and commands."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import pytest

import orchestrator.sync
from orchestrator import Agent, InvalidInput, Submission, TaskContext, TaskFilter
from orchestrator.client.session_actions import delete_session
from orchestrator.core.formats import Feature
from orchestrator.store.store import Store
from orchestrator.tasks import selecting, walking
from orchestrator.tasks.walking import Cursor
from orchestrator.testing.waiting import wait_for
from tests.helpers.terminal import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.local_team import LocalTeam


async def ids(team: LocalTeam, **wanted: Any) -> list[str]:
    """The ids of a list."""
    return [task.id async for task in team.orc.tasks.list(TaskFilter(**wanted))]


async def in_pages(team: LocalTeam, limit: int, **wanted: Any) -> list[str]:
    """The ids of a list that is read page by page, each by its cursor alone."""
    found: list[str] = []
    after: str | None = None
    while True:
        page = await team.orc.tasks.page(TaskFilter(**wanted), after=after, limit=limit)
        assert len(page.tasks) <= limit
        found += [task.id for task in page.tasks]
        if page.cursor is None:
            return found
        after = page.cursor


async def pool_of_tasks(team: LocalTeam) -> dict[str, str]:
    """Tasks in every place that a task may have, some with a session, a tag or a parent; their ids by name."""
    agent = Agent("placed", concurrency=6)

    @agent.skill
    async def run() -> None:
        await anyio.sleep_forever()

    @agent.skill
    async def end() -> None:
        return

    @agent.skill(max_attempts=1)
    async def fail() -> None:
        raise RuntimeError("no more paper")

    @agent.skill
    async def ask(ctx: TaskContext) -> str:
        return str(await ctx.ask("go on?"))

    @agent.skill
    async def bear(ctx: TaskContext) -> None:
        for number in range(3):
            await ctx.submit("nobody", {"number": number}, tags=["eu"])
        await anyio.sleep_forever()

    await team.work(agent)
    orc = team.orc
    made = {
        "succeeded": await orc.submit("end", session="s 1", tags=["eu"]),
        "dead": await orc.submit("fail", session="s 1", tags=["eu", "us"]),
    }
    await wait_for(lambda: ended(team, 2), "two ends")
    made |= {
        "running": await orc.submit("run", tags=["eu"]),
        "turn": await orc.submit("run", lane="l/1", session="s 1"),
        **{f"behind {n}": await orc.submit("run", lane="l/1", session="s 1", tags=["eu"]) for n in range(3)},
        "asking": await orc.submit("ask", session="s 1"),
        "parked": await orc.submit("nobody", agent="placed", tags=["us"]),
        "scheduled": await orc.submit("run", delay=60, session="s 1", tags=["eu"]),
        "parent": await orc.submit("bear", session="s 1"),
    }
    await orc.admin.stop(session="s 2")
    made["held"] = await orc.submit("run", session="s 2", tags=["eu"])

    async def settled() -> bool:
        children = await ids(team, parent=made["parent"].id)
        states = {task.state for task in await orc.tasks.find()}
        return len(children) == 3 and {"running", "awaiting_input"} <= states

    await wait_for(settled, "all to be in their places")
    found = {name: handle.id for name, handle in made.items()}
    return found | {f"child {n}": id_ for n, id_ in enumerate(await ids(team, parent=found["parent"]))}


async def ended(team: LocalTeam, count: int) -> bool:
    """Whether so many tasks have ended."""
    return len(await team.orc.tasks.ends()) == count


async def test_filters(team: LocalTeam) -> None:
    """Each condition finds its tasks, wherever they are, by the index or without it, whole or page by page."""
    made = await pool_of_tasks(team)
    behind, children = [f"behind {n}" for n in range(3)], [f"child {n}" for n in range(3)]
    in_session = ["succeeded", "dead", "turn", *behind, "asking", "scheduled", "parent", *children]
    eu = ["succeeded", "dead", "running", *behind, "scheduled", "held", *children]
    ready = [*behind, *children, "parked", "held"]
    names = {id_: name for name, id_ in made.items()}
    cases: list[tuple[dict[str, Any], list[str]]] = [
        ({}, list(made)),
        ({"session": "s 1"}, in_session),
        ({"tag": "eu"}, eu),
        ({"parent": made["parent"]}, children),
        ({"skill": "run"}, ["running", "turn", *behind, "scheduled", "held"]),
        ({"agent": "placed"}, ["succeeded", "dead", "running", "turn", "asking", "parked", "parent"]),
        ({"error": "no more paper"}, ["dead"]),
        ({"reason": "PAPER"}, ["dead"]),
        ({"tag": "eu", "session": "s 1"}, [name for name in eu if name in in_session]),
        ({"tag": "eu", "parent": made["parent"], "session": "s 1"}, children),
        ({"tag": "eu", "states": ["dead"]}, ["dead"]),
        ({"tag": "us", "states": ["ready"]}, ["parked"]),
        ({"session": "s 1", "states": ["running"]}, ["turn", "parent"]),
        ({"session": "s 1", "states": ["awaiting_input"]}, ["asking"]),
        ({"tag": "none"}, []),
        ({"session": "none"}, []),
        ({"older_than": 3600}, []),
        ({"since": datetime.now(UTC) - timedelta(hours=1), "states": ["succeeded"]}, ["succeeded"]),
        ({"states": ["ready"]}, ready),
        ({"states": ["awaiting_input"]}, ["asking"]),
        ({"states": ["running", "scheduled"]}, ["running", "turn", "parent", "scheduled"]),
        ({"states": ["dead"]}, ["dead"]),
        ({"states": ["succeeded", "expired"]}, ["succeeded"]),
    ]
    for wanted, expected in cases:
        whole = [names[id_] for id_ in await ids(team, **wanted)]
        assert sorted(whole) == sorted(expected), wanted
        for limit in (1, 2):
            assert [names[id_] for id_ in await in_pages(team, limit, **wanted)] == whole, (wanted, limit)


async def test_order(team: LocalTeam) -> None:
    """Tasks of a session and of a tag come newest first, children in the order of their submits."""
    handles = await team.orc.submit_many([Submission("later", session="s", tags=["eu"]) for _ in range(1203)])
    newest = [handle.id for handle in reversed(handles)]
    assert await ids(team, tag="eu") == newest
    assert sorted(await ids(team, session="s")) == sorted(newest)
    assert (await ids(team, session="s"))[:1000] == newest[:1000]
    assert await in_pages(team, 500, session="s") == await ids(team, session="s")
    assert (await team.orc.tasks.page(TaskFilter(tag="eu"))).tasks[0].id == newest[0]


async def test_ends_in_many_entries(team: LocalTeam) -> None:
    """Ends of one kind are found behind many entries of other ends, and a page reads a bounded part of the stream."""
    keys = team.services.store.keys
    wanted = [(await team.orc.submit("nobody")).id for _ in range(3)]
    other = (await team.orc.submit("nobody")).id
    for handle in wanted:
        await team.orc.cancel(handle)
    await team.services.store.execute("UNLINK", keys.events)
    entries = [wanted[0], *[other] * 300, wanted[1], *[other] * 30, wanted[2]]
    letters = ["c" if id_ in wanted else "s" for id_ in entries]
    add = [("XADD", keys.events, "*", id_, letter) for id_, letter in zip(entries, letters, strict=True)]
    await team.services.store.pipeline(add)
    assert await ids(team, states=["cancelled"]) == wanted[::-1]
    assert await in_pages(team, 1, states=["cancelled"]) == wanted[::-1]
    page = await team.orc.tasks.page(TaskFilter(states=["expired"]), limit=10)
    assert (page.tasks, page.cursor) == ((), None)
    await team.services.store.pipeline([("XADD", keys.events, "*", id_, "c") for id_ in wanted * 10])
    assert len([task async for task in team.orc.tasks.list(TaskFilter(states=["cancelled"]))]) == 3


async def test_indices_are_used(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks without the session, parent or tag are not read; a page reads no more than its bound."""
    await team.orc.submit_many([Submission("later") for _ in range(1500)])
    handles = await team.orc.submit_many([Submission("later", session="s", tags=["eu"]) for _ in range(3)])
    for wanted in (TaskFilter(session="s"), TaskFilter(tag="eu"), TaskFilter(parent=handles[0].id)):
        page = await team.orc.tasks.page(wanted)
        assert (page.looked, page.cursor) == (0 if wanted.parent else 3, None)
    none = await team.orc.tasks.page(TaskFilter(error="no such text"))
    assert (none.tasks, none.cursor) == ((), None)
    assert none.looked >= 1503
    monkeypatch.setattr(selecting, "MOST_LOOKED", 600)
    cut = await team.orc.tasks.page(TaskFilter(error="no such text"))
    assert 600 <= cut.looked < 1200
    assert cut.cursor is not None
    assert await ids(team, error="no such text") == []
    assert len(await ids(team, tag="eu")) == 3


async def test_children_are_read_in_pages(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """No read takes more of the children than a page, unless the list has changed before the page; none is missed."""
    agent = Agent("placed")

    @agent.skill
    async def bear(ctx: TaskContext) -> None:
        await ctx.submit_many(Submission("later") for _ in range(400))

    await team.work(agent)
    parent = await team.orc.submit("bear")
    await parent.result(timeout=10)
    monkeypatch.setattr(walking, "PAGE", 50)
    execute, lengths = Store.execute, list[int]()

    async def counted(store: Store, *command: Any) -> Any:
        reply = await execute(store, *command)
        if command[0] == "LRANGE":
            lengths.append(len(reply))
        return reply

    monkeypatch.setattr(Store, "execute", counted)
    found = await ids(team, parent=parent.id)
    assert len(set(found)) == len(found) == 400
    assert max(lengths) <= 51
    assert await in_pages(team, 70, parent=parent.id) == found
    assert max(lengths) <= 51
    first = await team.orc.tasks.page(TaskFilter(parent=parent.id), limit=70)
    children_key = team.services.keys.children(parent.id)
    await team.services.store.execute("LTRIM", children_key, 10, -1)
    second = await team.orc.tasks.page(TaskFilter(parent=parent.id), after=first.cursor, limit=70)
    assert [task.id for task in (*first.tasks, *second.tasks)] == found[:140]
    await team.services.store.execute("LREM", children_key, 1, found[139])
    third = await team.orc.tasks.page(TaskFilter(parent=parent.id), after=second.cursor, limit=70)
    assert [task.id for task in third.tasks] == found[140:210]


async def test_one_moment(team: LocalTeam) -> None:
    """Pages go on within many tasks of one score, also when the last one read has left."""
    at = datetime.now(UTC) + timedelta(hours=1)
    handles = await team.orc.submit_many([Submission("later", at=at) for _ in range(1201)])
    wanted = TaskFilter(states=["scheduled"])
    first = await team.orc.tasks.page(wanted, limit=700)
    await team.orc.task(first.tasks[-1].id).cancel()
    second = await team.orc.tasks.page(wanted, after=first.cursor, limit=700)
    assert second.cursor is None
    assert sorted(task.id for page in (first, second) for task in page.tasks) == sorted(each.id for each in handles)


async def test_pool_with_older_programs(team: LocalTeam) -> None:
    """While a pool admits programs that do not index tags, a list by a tag looks at all tasks."""
    handle = await team.orc.submit("later", tags=["eu"])
    await team.services.store.execute("UNLINK", team.services.keys.tag("eu"))
    assert await ids(team, tag="eu") == []
    team.orc.services.store.floor.value = Feature.TAG_INDEX.floor - 1
    assert await ids(team, tag="eu") == [handle.id]


async def test_erased_sessions(team: LocalTeam) -> None:
    """Tasks that are deleted with their session leave the indices of their tags."""
    agent = Agent("worker")

    @agent.skill
    async def work() -> None:
        return

    await team.work(agent)
    handle = await team.orc.submit("work", session="s", tags=["eu"])
    await handle.result(timeout=5)
    kept = await team.orc.submit("work", tags=["eu"])
    await kept.result(timeout=5)
    await delete_session(team.services, team.orc.locks(), "s")
    left = await team.services.store.execute("ZRANGE", team.services.keys.tag("eu"), 0, -1)
    assert [id_.decode() for id_ in left] == [kept.id]


async def test_invalid_questions(team: LocalTeam) -> None:
    """What is no cursor, one of another filter, or no filter at all, is refused."""
    tasks = team.orc.tasks
    await team.orc.submit_many([Submission("later", tags=["eu"]) for _ in range(2)])
    page = await tasks.page(TaskFilter(tag="eu"), limit=1)
    assert page.cursor is not None
    for wanted, after in ((TaskFilter(), page.cursor), (TaskFilter(session="s"), page.cursor), (TaskFilter(), "?")):
        with pytest.raises(InvalidInput, match="cursor"):
            await tasks.page(wanted, after=after)
    forged = Cursor("dead", "", "(5 x").text
    with pytest.raises(InvalidInput, match="cursor"):
        await tasks.page(TaskFilter(states=["dead"]), after=forged)
    with pytest.raises(InvalidInput, match="limit"):
        await tasks.page(limit=0)
    for wrong in ({"parent": "x"}, {"session": ""}, {"tag": "x" * 300}, {"states": ["done"]}):
        with pytest.raises(InvalidInput):
            TaskFilter(**wrong)


async def test_blocking_client_and_commands(team: LocalTeam, tmp_path: Path) -> None:
    """The blocking client iterates too; `orc tasks list` takes the same conditions and goes on behind a cursor."""
    handles = await team.orc.submit_many([Submission("later", tags=["eu"], session="s") for _ in range(3)])
    await team.orc.submit("later")
    newest = [handle.id for handle in reversed(handles)]

    def read() -> tuple[list[str], int]:
        with orchestrator.sync.Orchestrator(settings=team.settings) as orc:
            page = orc.tasks.page(TaskFilter(tag="eu"), limit=2)
            return [task.id for task in orc.tasks.list(TaskFilter(tag="eu", states=["ready"]))], len(page.tasks)

    assert await anyio.to_thread.run_sync(read) == (newest, 2)
    url = team.settings.redis.url
    assert url is not None
    terminal = Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)

    def typed(*words: str) -> tuple[list[str], str]:
        done = terminal.orc("tasks", "list", "-o", "id", *words)
        assert done.code == 0, done.err
        return done.out.split(), done.err

    async def listed(*words: str) -> tuple[list[str], str]:
        return await anyio.to_thread.run_sync(partial(typed, *words))

    assert (await listed("--tag", "eu", "--session", "s", "--skill", "later"))[0] == newest
    assert (await listed("--tag", "eu", "--state", "dead"))[0] == []
    assert (await listed("--older-than", "1h"))[0] == []
    assert len((await listed("--since", "1h"))[0]) == 4
    first, said = await listed("--tag", "eu", "--limit", "2")
    assert first == newest[:2]
    cursor = said.split("--after ")[1].split()[0]
    assert (await listed("--tag", "eu", "--after", cursor))[0] == newest[2:]
