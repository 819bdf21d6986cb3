"""Views of tasks, dead letters, jobs, damage and locks as values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator import Agent, Reject
from orchestrator.agents import scripts
from orchestrator.agents.model import AgentSpec
from orchestrator.core.errors import InvalidInput, NotFound, TaskFailed
from orchestrator.core.ids import new_task_id
from orchestrator.core.settings_sources import LoadedSettings
from orchestrator.doctor.findings import Severity
from orchestrator.tasks import queries
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.selecting import OPEN, TaskFilter
from orchestrator.tasks.submission import Submission
from orchestrator.views.control import list_commands, read_command, read_job
from orchestrator.views.doctor import diagnose
from orchestrator.views.keys import check_keys, count_keys
from orchestrator.views.locks import find_lock
from orchestrator.views.tasks import (
    export_dead_letter,
    group_dead_letters,
    list_tasks,
    read_dead_letter,
    read_task,
    read_task_status,
    select_tasks,
)
from tests.helpers.counting import CommandCounter
from tests.helpers.local_team import TIMEOUT_S, run_local_team
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    import redis

    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam


async def test_tasks_are_data(team: LocalTeam) -> None:
    """One task: in the list, alone, with what it waits for; a malformed id and an unknown one are errors."""
    task = await team.orc.submit("write", session="101", tags=["blue"])
    (row,) = await list_tasks(team.services, states=[TaskState.READY])
    assert (row.id, row.skill, row.session, row.tags) == (task.id, "write", "101", ("blue",))
    assert await list_tasks(team.services, states=[TaskState.DEAD]) == []
    info, status = await read_task(team.services, task.id), await read_task_status(team.services, task.id)
    assert (info.state, info.skill, status.detail.cause) == ("ready", "write", "no_agent")
    with pytest.raises(InvalidInput):
        await read_task(team.services, "7")
    with pytest.raises(NotFound, match="is not a dead letter, it is ready"):
        await read_dead_letter(team.services, task.id)
    assert await export_dead_letter(team.services, task.id) is None
    found = await select_tasks(team.services, TaskFilter(tag="blue"), among=OPEN)
    assert ([one.id for one in found.tasks], found.ids, found.more) == ([task.id], [task.id], False)
    assert found.tasks[0].submitted_at == info.submitted_at


async def test_a_list_reads_as_much_as_it_shows(
    team: LocalTeam, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of a few tasks reads the inboxes of a few agents; a long one reads them all."""
    monkeypatch.setattr(queries, "CHUNK", 1)
    for number in range(12):
        agent = AgentSpec(f"agent-{number:02}", frozenset({"write"}))
        about: dict[str, str | int] = {"host": "h", "pid": number, "version": "1", "started_ms": 1_700_000_000_000}
        call = scripts.register(
            team.services.keys, worker=f"h:{number}:a", spec=agent, slots=1, backlog=0, about=about, alive_s=30
        )
        await team.services.store.call(call)
    tasks = await team.orc.submit_many([Submission("write")] * 12)
    await wait_for(lambda: _are_assigned(team, [task.id for task in tasks]), "all assigned", TIMEOUT_S)
    counter = CommandCounter(redis_client)
    assert len(await list_tasks(team.services, states=[TaskState.ASSIGNED], limit=2)) == 2
    few = counter.calls()["xpending"]
    assert len(await list_tasks(team.services, limit=50)) == 12
    assert few <= 6 <= counter.calls()["xpending"] - few


async def _are_assigned(team: LocalTeam, ids: list[str]) -> bool:
    found = await list_tasks(team.services, states=[TaskState.ASSIGNED], limit=50)
    return {row.id for row in found} == set(ids)


async def test_dead_letters_are_data(team: LocalTeam) -> None:
    """The notes of a dead letter have times, and letters with the same error form a group."""
    agent = Agent("editor")

    @agent.skill
    async def fail() -> None:
        raise Reject("no room")

    await team.work(agent)
    tasks = [await team.orc.submit("fail") for _ in range(3)]
    for task in tasks:
        with pytest.raises(TaskFailed):
            await task.result(TIMEOUT_S)
    await tasks[0].retry("more room", actor="ada@desk")
    with pytest.raises(TaskFailed):
        await tasks[0].result(TIMEOUT_S)
    found = await read_dead_letter(team.services, tasks[0].id)
    (note,) = found.requeues
    assert (note.state, note.who, found.deaths) == ("dead", "ada@desk: more room", ())
    assert note.at is not None
    assert found.info.ended_at is not None
    assert found.info.submitted_at <= note.at <= found.info.ended_at
    exported = await export_dead_letter(team.services, tasks[0].id)
    assert exported is not None
    assert exported["state"] == "dead"
    grouped = await group_dead_letters(team.services, TaskFilter(), limit=2)
    assert ([(group.skill, group.tasks) for group in grouped.groups], grouped.more) == ([("fail", 2)], True)


async def test_a_job_is_data(team: LocalTeam) -> None:
    """The state of a job, and the command with its receipts."""
    tasks = await team.orc.submit_many([Submission("write")] * 3)
    sent = await team.orc.admin.cancel(TaskFilter(skill="write"), reason="test data", actor="ada@desk")
    await sent.receipts(timeout=TIMEOUT_S)
    state = await read_job(team.services, sent)
    assert (state.word, state.ended, state.supervised) == ("done", True, True)
    assert state.ends == {"cancelled": len(tasks)}
    found = await read_command(team.services, sent.id)
    assert (found.record.kind, found.record.state, found.receipts.done) == ("cancel-tasks", "given", True)
    assert [one.id for one in await list_commands(team.services, actor="ada@desk")] == [sent.id]
    assert await list_commands(team.services, kind="stop") == []
    assert await list_commands(team.services, refused=True) == []
    with pytest.raises(NotFound, match="no command 7"):
        await read_command(team.services, "7")


async def test_a_job_without_a_supervisor(settings: Settings) -> None:
    """A job that no supervisor has begun is stored and not supervised."""
    async with run_local_team(settings, supervised=False) as team:
        sent = await team.orc.admin.cancel([new_task_id()])
        state = await read_job(team.services, sent)
        assert (state.word, state.ended, state.supervised) == ("stored", False, False)


async def test_damage_is_counted(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Findings of one kind form a group with some examples; a report counts the keys."""
    await team.orc.submit_many([Submission("write")] * 7)
    redis_client.delete(team.services.keys.queue("skill:write"))
    seen: list[int] = []
    groups = {group.code: group for group in await check_keys(team.services, on_step=lambda many, _: seen.append(many))}
    group = groups["lost-ready"]
    assert (group.count, group.repaired, group.harmless, len(group.examples)) == (7, False, False, 5)
    assert seen
    kinds = {kind.kind: kind.keys for kind in (await count_keys(team.services)).kinds}
    assert kinds["task:ID"] == 7
    repaired = {one.code: one for one in await check_keys(team.services, repair=True)}
    assert repaired["lost-ready"].repaired


async def test_a_lock_by_its_name(team: LocalTeam) -> None:
    """A named lock is found by its name, the lock of a whole session by `exec`."""
    locks = team.orc.locks("session:101")
    lease = await locks.try_acquire("report")
    assert lease is not None
    found = await find_lock(locks, "report")
    assert (found.name, found.fence, found.task) == ("report", lease.fence, None)
    async with locks.hold_scope() as whole:
        assert (await find_lock(locks, "exec")).fence == whole.fence
    with pytest.raises(NotFound, match="lock 'exec' of session:101 is not held"):
        await find_lock(locks, "exec")


async def test_a_diagnosis_counts(team: LocalTeam) -> None:
    """The checks of the doctor as values."""
    found = await diagnose(lambda: LoadedSettings(team.settings, {}))
    severities = [finding.severity for finding in found.findings]
    assert found.answered
    assert (found.problems, found.warnings) == (severities.count(Severity.PROBLEM), severities.count(Severity.WARNING))
    assert "supervisor" in {finding.code for finding in found.findings}
