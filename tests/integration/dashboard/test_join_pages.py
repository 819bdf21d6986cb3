"""What a task that joins others waits for, on its page and over the HTTP API; and the effects of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, Flow, TaskContext, TaskState
from orchestrator.accounts.model import EVERYTHING, AccountScope, Role
from orchestrator.core.ids import new_task_id
from orchestrator.views.joins import MISSING, read_join
from tests.helpers.api_client import api_client
from tests.helpers.counted_reads import counted_reads
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for
from tests.helpers.web_client import WebClient

if TYPE_CHECKING:
    from orchestrator import TaskHandle
    from tests.helpers.local_team import LocalTeam


def gatherer(**options: Any) -> Agent:
    """An agent whose task joins children that no agent runs."""
    agent = Agent("gatherer")

    @agent.skill
    async def gather(ctx: TaskContext, children: int) -> int:
        handles = [await ctx.submit("leaf", {"n": n}) for n in range(children)]
        return len(await ctx.join(handles, **options))

    return agent


async def joins(handle: TaskHandle[Any]) -> None:
    """Wait until a task joins others."""

    async def waits() -> bool:
        return (await handle.status()).state is TaskState.JOINING

    await wait_for(waits, "joining", TIMEOUT_S)


async def test_what_a_parent_waits_for(team: LocalTeam) -> None:
    """Its page names the missing tasks with their states and the deadline; the page of a child names the parent."""
    await team.work(gatherer(until=2, deadline=3600, default=None))
    handle = await team.orc.submit("gather", {"children": 3}, session="s")
    await joins(handle)
    children = (await handle.info()).children
    web = WebClient(team.orc)
    await web.log_in()
    part = (await web.get(f"/tasks/{handle.id}")).text.partition('id="join"')[2].partition("</section>")[0]
    assert "2 of these 3 tasks must still end" in part
    assert "or one must fail" in part
    assert "The deadline is <time" in part
    for child in children:
        assert f'href="/tasks/{child}"' in part
        assert f'Joined by <a href="/tasks/{handle.id}">' in (await web.get(f"/tasks/{child}")).text
    assert part.count("ready") == 3
    listed = (await web.get("/tasks?state=joining")).text
    assert f'href="/tasks/{handle.id}"' in listed
    assert "joining" in listed
    page = (await web.get(f"/tasks/{handle.id}/join")).text
    assert all(f'href="/tasks/{child}"' in page for child in children)
    api = await api_client(team.orc, Role.VIEWER)
    found = await api.read(f"/tasks/{handle.id}/join")
    assert [(one["id"], one["state"], one["skill"]) for one in found["missing"]] == [
        (child, "ready", "leaf") for child in children
    ]
    assert (found["total"], found["must_end"], found["join"]["number"]) == (3, 2, 1)
    assert found["join"]["deadline"] > found["join"]["since"]
    assert (await api.read(f"/tasks/{handle.id}"))["join"] == found["join"]
    child = await api.read(f"/tasks/{children[0]}/join")
    assert (child["join"], child["joined_by"]) == (None, [handle.id])
    assert (await api.read("/overview"))["joining"] == 1
    await team.orc.task(children[1]).cancel()
    assert await read_is_over(team, handle)
    web.dashboard.forget_reads()
    assert "The task joins no tasks now." in (await web.get(f"/tasks/{handle.id}/join")).text


async def read_is_over(team: LocalTeam, handle: TaskHandle[Any]) -> bool:
    """Wait until a task waits with no join, because a failure has ended it."""

    async def over() -> bool:
        return (await read_join(team.services, handle.id, EVERYTHING)).join is None

    await wait_for(over, "the end of the join", TIMEOUT_S)
    return True


async def test_many_missing_tasks(team: LocalTeam) -> None:
    """The page of the task shows ten, and leads to a list of all, in pages of a fixed number of round trips."""
    await team.work(gatherer())
    handle = await team.orc.submit("gather", {"children": MISSING + 20})
    await joins(handle)
    children = (await handle.info()).children
    web = WebClient(team.orc)
    await web.log_in()
    page = (await web.get(f"/tasks/{handle.id}")).text
    assert f'<a href="/tasks/{handle.id}/join">All {MISSING + 20}</a>' in page
    assert "It has no deadline." in page
    store = team.services.store
    with pytest.MonkeyPatch.context() as patch, counted_reads(store, patch) as counted:
        found = await read_join(team.services, handle.id, EVERYTHING)
    assert counted.trips <= 3
    rest = await read_join(team.services, handle.id, EVERYTHING, after=found.cursor)
    assert [one.id for one in (*found.missing, *rest.missing)] == list(children)
    assert (found.must_end, rest.cursor) == (MISSING + 20, None)
    assert 'rel="next"' in (await web.get(f"/tasks/{handle.id}/join")).text
    answer = await web.get(f"/tasks/{handle.id}/join?after=x")
    assert answer.status_code == 400


async def test_refused(team: LocalTeam) -> None:
    """Unknown tasks are not found, and a narrowed user sees only those of its agents."""
    task = await team.orc.submit("leaf", agent="other")
    own = await team.orc.submit("leaf", agent="gatherer")
    api = await api_client(team.orc, scope=AccountScope(frozenset({"gatherer"})))
    for part in ("join", "effects"):
        assert (await api.get(f"/tasks/{own.id}/{part}")).status_code == 200
        for id_, status in ((task.id, 404), (new_task_id(), 404), ("x", 400)):
            assert (await api.get(f"/tasks/{id_}/{part}")).status_code == status


@pytest.mark.parametrize("key", ["joins", "task"])
async def test_a_key_of_another_type(team: LocalTeam, key: str) -> None:
    """A list of another type has no missing tasks, and a child with a damaged record counts as gone."""
    await team.work(gatherer())
    handle = await team.orc.submit("gather", {"children": 1})
    await joins(handle)
    (child,) = (await handle.info()).children
    keys, store = team.services.keys, team.services.store
    wrong = keys.joins(handle.id) if key == "joins" else keys.task(child)
    await store.pipeline([("DEL", wrong), ("SET", wrong, "x"), ("EXPIRE", wrong, 60)])
    found = await read_join(team.services, handle.id, EVERYTHING)
    assert [(one.id, one.state) for one in found.missing] == ([] if key == "joins" else [(child, None)])


@pytest.mark.parametrize(
    ("fields", "number"),
    [
        (("join", "17 20 1 1 3600", "join:20", "1700000000000 0"), 20),
        (("join", "17 3 1 1 3600"), 3),  # the field of the join is lost
        (("join", "17 3"), None),
        (("join", "x" * 100), None),
        (("join", "a b c d e"), None),
    ],
)
async def test_stored_joins(team: LocalTeam, fields: tuple[str, ...], number: int | None) -> None:
    """A late join is found, one with a lost field has no times, and a damaged one is none."""
    await team.work(gatherer())
    handle = await team.orc.submit("gather", {"children": 2})
    await joins(handle)
    store, task_key = team.services.store, team.services.keys.task(handle.id)
    await store.execute("HDEL", task_key, "join", "join:1")
    await store.execute("HSET", task_key, *fields)
    found = await read_join(team.services, handle.id, EVERYTHING)
    web = WebClient(team.orc)
    await web.log_in()
    page = await web.get(f"/tasks/{handle.id}")
    assert page.status_code == 200
    if number is None:
        assert found.join is None
        return
    assert found.join is not None
    assert (found.join.number, found.join.may_be_left, found.join.ends_at_failure) == (number, 1, True)
    assert (found.join.since is None, found.join.deadline) == (number == 3, None)
    assert "1 of these 2 tasks must still end, or one must fail." in page.text


async def test_effects(team: LocalTeam) -> None:
    """The effects of a task are a list of their own."""
    agent = Agent("clerk")

    async def charged(amount: int) -> str:
        return f"charged {amount}"

    @agent.skill
    async def charge(ctx: TaskContext) -> Any:
        return await ctx.effect("charge", charged, 5)

    await team.work(agent)
    handle = await team.orc.submit("charge")
    await handle.result(TIMEOUT_S)
    api = await api_client(team.orc, Role.VIEWER)
    (effect,) = (await api.read(f"/tasks/{handle.id}/effects"))["effects"]
    assert (effect["name"], effect["state"], effect["question"], effect["decisions"]) == ("charge", "done", None, [])
    assert "charged" not in str(effect)


async def test_a_narrowed_user_sees_no_foreign_task(team: LocalTeam) -> None:
    """Of a joined task that is neither below the parent nor in the scope, only the id is shown; children are."""
    agent = Agent("gatherer")

    @agent.skill
    async def gather(ctx: TaskContext, other: str) -> int:
        return len(await ctx.join([await ctx.submit("leaf"), team.orc.task(other)]))

    await team.work(agent)
    other = (await team.orc.submit("foreign-skill", session="foreign")).id
    handle = await team.orc.submit("gather", {"other": other}, session="own")
    await joins(handle)
    scope = AccountScope(sessions=frozenset({"own"}))
    narrowed = await api_client(team.orc, Role.VIEWER, scope=scope)
    (child,) = (await handle.info()).children
    found = (await narrowed.read(f"/tasks/{handle.id}/join"))["missing"]
    assert {one["id"]: (one["state"], one["skill"], one["hidden"]) for one in found} == {
        child: ("ready", "leaf", False),
        other: (None, None, True),
    }
    web = WebClient(team.orc)
    await web.dashboard.accounts.put_user("bob", Role.VIEWER, "correct horse", scope=scope)
    await web.post("/login", {"name": "bob", "password": "correct horse"})
    for path in (f"/tasks/{handle.id}", f"/tasks/{handle.id}/join"):
        page = (await web.get(path)).text.partition("Missing task")[2].partition("</table>")[0]
        assert f'href="/tasks/{child}"' in page
        assert "not visible to you" in page
        assert "foreign-skill" not in page
        assert f'href="/tasks/{other}"' not in page
    await web.log_in()
    web.dashboard.forget_reads()
    page = (await web.get(f"/tasks/{handle.id}/join")).text
    assert "foreign-skill" in page
    assert f'href="/tasks/{other}"' in page


async def test_a_missing_task_that_runs(team: LocalTeam) -> None:
    """It is `running` here too, as in the lists of tasks, not `assigned`."""
    agent = gatherer()
    gate = anyio.Event()

    @agent.skill
    async def leaf(n: int) -> int:
        await gate.wait()
        return n

    await team.work(agent)
    handle = await team.orc.submit("gather", {"children": 1})
    await joins(handle)
    (child,) = (await handle.info()).children

    async def runs() -> bool:
        return (await team.orc.task(child).status()).state is TaskState.RUNNING

    await wait_for(runs, "the child", TIMEOUT_S)
    found = await read_join(team.services, handle.id, EVERYTHING)
    assert [one.state for one in found.missing] == [TaskState.RUNNING]
    web = WebClient(team.orc)
    await web.log_in()
    part = (await web.get(f"/tasks/{handle.id}")).text.partition("Missing task")[2].partition("</table>")[0]
    assert "running" in part
    gate.set()
    assert await handle.result(TIMEOUT_S) == 1


async def test_tasks_of_a_flow(team: LocalTeam) -> None:
    """One with followers is joined by none, and a narrowed user reads nothing of a predecessor but its id."""
    flow = Flow("review")
    page = flow.task("fetch", session="other")
    flow.task("judge", {"page": page.result}, session="mine")
    fetch, judge = (await team.orc.submit_flow(flow)).handles
    api = await api_client(team.orc, Role.VIEWER)
    assert (await api.read(f"/tasks/{fetch.id}"))["joined_by"] == []
    assert (await api.read(f"/tasks/{fetch.id}/join"))["joined_by"] == []
    waits = f"runs after 1 task of its flow, which has not ended: {fetch.id}"
    assert (await api.read(f"/tasks/{judge.id}"))["why"]["text"].startswith(f"{waits}; task {fetch.id}: ")
    narrowed = await api_client(team.orc, Role.VIEWER, scope=AccountScope(sessions=frozenset({"mine"})))
    told = await narrowed.read(f"/tasks/{judge.id}")
    assert told["why"]["text"] == told["info"]["why"] == waits
    assert told["why"]["child"] is None
