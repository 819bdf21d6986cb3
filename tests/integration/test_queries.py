"""What can be seen of tasks: one task in every state, and the lists."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import Agent, Reject
from orchestrator.core.errors import TaskFailed
from orchestrator.tasks import queries
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.submission import Submission
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from orchestrator.client.handle import TaskHandle
    from tests.helpers.local_team import LocalTeam


async def _in_every_place(team: LocalTeam) -> dict[TaskState, TaskHandle[object]]:
    """One task in each state that a task can be in without being cancelled or late."""
    agent, started = Agent("editor", concurrency=1), anyio.Event()

    @agent.skill
    async def work() -> str:
        return "done"

    @agent.skill
    async def reject() -> None:
        raise Reject("no")

    @agent.skill
    async def hold() -> None:
        started.set()
        await anyio.sleep(60)

    await team.work(agent)
    orc = team.orc
    handles: dict[TaskState, TaskHandle[object]] = {TaskState.SUCCEEDED: await orc.submit("work")}
    await handles[TaskState.SUCCEEDED].result(TIMEOUT_S)
    handles[TaskState.DEAD] = await orc.submit("reject")
    with pytest.raises(TaskFailed):
        await handles[TaskState.DEAD].result(TIMEOUT_S)
    handles[TaskState.RUNNING] = await orc.submit("hold", tags=["t"], session="s", priority="high")
    await started.wait()
    handles[TaskState.READY] = await orc.submit("work")
    handles[TaskState.SCHEDULED] = await orc.submit("work", delay=60)
    return handles


async def test_a_task_tells_where_it_is(team: LocalTeam) -> None:
    """State, reason, agent, worker, times and attempts in each state."""
    asked = datetime.now(UTC)
    handles = await _in_every_place(team)
    infos = {state: await handle.info() for state, handle in handles.items()}
    assert {state: info.state for state, info in infos.items()} == {state: state for state in handles}
    running = infos[TaskState.RUNNING]
    assert (running.agent, running.attempts, running.tags, running.session, running.priority) == (
        "editor",
        1,
        ("t",),
        "s",
        1,
    )
    assert running.worker is not None
    assert running.why.startswith(f"worker {running.worker} on ")
    assert infos[TaskState.READY].why.startswith("the one slot of agent 'editor' is taken")
    due = infos[TaskState.SCHEDULED].due_at
    assert due is not None
    assert timedelta(seconds=50) < due - asked < timedelta(seconds=70)
    dead = infos[TaskState.DEAD]
    assert (dead.reason, dead.errors, dead.attempts, dead.result) == ("no", ("no",), 1, None)
    done = infos[TaskState.SUCCEEDED]
    assert (done.result, done.attempts, done.errors, done.reason, done.agent) == (b'"done"', 1, (), "", "editor")
    for info in infos.values():
        assert abs(info.submitted_at - asked) < timedelta(seconds=10)
        assert (info.ended_at is not None) == info.state.final


async def test_lists_show_every_task_once(team: LocalTeam) -> None:
    """Running first, then what waits, then what ended; filters and limits hold."""
    handles = await _in_every_place(team)
    store = team.services.store
    listed = await queries.listing(store, states=[], limit=100)
    assert {row.id: row.state for row in listed} == {handle.id: state for state, handle in handles.items()}
    assert [row.state for row in listed[:3]] == [TaskState.RUNNING, TaskState.READY, TaskState.SCHEDULED]
    assert (listed[0].skill, listed[0].tags, listed[0].session, listed[0].priority) == ("hold", ("t",), "s", 1)
    only = await queries.listing(store, states=[TaskState.DEAD, TaskState.READY], limit=100)
    assert [row.state for row in only] == [TaskState.READY, TaskState.DEAD]
    assert len(await queries.listing(store, states=[], limit=2)) == 2
    assert await queries.dead(store, 10) == [(handles[TaskState.DEAD].id, TaskState.DEAD)]
    assert await queries.queue_lengths(store) == {
        "skill:work": 1,
        "scheduled": 1,
        "awaiting_input": 0,
        "joining": 0,
        "awaiting_tasks": 0,
    }
    counters = await queries.counters(store)
    assert (counters["submitted"], counters["succeeded"], counters["dead"]) == (5, 1, 1)


async def test_a_damaged_record_spoils_no_list(team: LocalTeam) -> None:
    """A task whose envelope cannot be read is shown as such; the others are shown as ever."""
    damaged, sound = await team.orc.submit_many([Submission("nobody"), Submission("nobody")])
    store = team.services.store
    await store.execute("HSET", store.keys.task(damaged.id), "env", b"\xc1")
    assert (await damaged.info()).skill == "(unreadable)"
    listed = {row.id: row.skill for row in await queries.listing(store, states=[], limit=10)}
    assert listed == {damaged.id: "(unreadable)", sound.id: "nobody"}


async def test_a_task_whose_inbox_is_gone_still_has_a_state(team: LocalTeam) -> None:
    """When the stream of its agent was lost, an assigned task is shown as assigned."""
    handles = await _in_every_place(team)
    await team.stop_workers()
    store, keys = team.services.store, team.services.keys
    running = handles[TaskState.RUNNING]
    await wait_for(lambda: _is(running, TaskState.READY), "the task to come back")
    await store.execute("HSET", keys.task(running.id), "state", "assigned", "at", "nowhere 1-0 5")
    assert (await running.status()).state is TaskState.ASSIGNED


async def _is(handle: TaskHandle[object], state: TaskState) -> bool:
    return (await handle.status()).state is state
