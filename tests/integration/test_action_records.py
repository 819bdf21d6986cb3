"""Actions without a command leave a record with actor and reason, whoever takes them: a program or an operator."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Agent, Reject
from orchestrator.client import action_records
from orchestrator.client.task_actions import cancel_tasks, delete_tasks, retry_tasks
from orchestrator.control.commands import RecordTasks
from orchestrator.control.records import find
from orchestrator.control.signing import signer_of
from orchestrator.core.errors import InvalidInput, StoreError, TaskFailed
from orchestrator.tasks import bulk
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.queries import server_ms
from orchestrator.tasks.submission import Submission
from orchestrator.views.control import list_commands
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from orchestrator.client.client import Orchestrator
    from orchestrator.client.handle import TaskHandle
    from tests.helpers.local_team import LocalTeam


async def _recorded(team: LocalTeam) -> list[tuple[str, set[str], str, str]]:
    """Action, tasks, actor and reason of each record, oldest first."""
    found: list[tuple[str, set[str], str, str]] = []
    for record in reversed(await list_commands(team.services, limit=100)):
        _, command = await find(team.services.store, signer_of(team.settings, place=team.services.keys.root), record.id)
        assert command is not None
        if isinstance(command, RecordTasks) and not record.problem:
            found.append((command.action, set(command.tasks), record.actor, record.reason))
    return found


async def _waiting_tasks(orc: Orchestrator, count: int) -> list[TaskHandle[Any]]:
    return await orc.submit_many([Submission("unserved")] * count)


async def test_a_handle_and_an_operator_leave_the_same_record(team: LocalTeam) -> None:
    """A cancel by a handle is recorded as one by ids; what had ended before is recorded by neither."""
    by_handle, by_ids, *both = await _waiting_tasks(team.orc, 4)
    assert await by_handle.cancel("wrong input", actor="ada@desk") == "ended"
    await wait_for(lambda: _count(team, 1), "the record", TIMEOUT_S)
    report = await cancel_tasks(team.services, [by_ids.id, by_handle.id], reason="wrong input", actor="ada@desk")
    assert report.unrecorded == ""
    assert report.tasks == {by_ids.id: ("ended", TaskState.CANCELLED), by_handle.id: ("already", TaskState.CANCELLED)}
    assert await by_handle.cancel("again") == "already"
    await cancel_tasks(team.services, [one.id for one in both])
    first, second, third = await _recorded(team)
    assert first == ("cancel", {by_handle.id}, "ada@desk", "wrong input")
    assert second == ("cancel", {by_ids.id}, "ada@desk", "wrong input")
    assert third[:2] == ("cancel", {one.id for one in both})
    assert "@" in third[2]


async def _count(team: LocalTeam, count: int) -> bool:
    return len(await _recorded(team)) >= count


async def test_retry_and_delete(team: LocalTeam) -> None:
    """A retry by a handle and by ids, and a delete, with the actor that is stored with the task."""
    agent = Agent("editor")

    @agent.skill
    async def fail() -> None:
        raise Reject("no")

    await team.work(agent)
    task = await team.orc.submit("fail")
    with pytest.raises(TaskFailed):
        await task.result(TIMEOUT_S)
    assert await task.retry("the disk has room", actor="ada@desk") == "requeued"
    with pytest.raises(TaskFailed):
        await task.result(TIMEOUT_S)
    await wait_for(lambda: _count(team, 1), "the record", TIMEOUT_S)
    report = await retry_tasks(team.services, [task.id], reason="again", actor="bob@desk")
    assert report.tasks[task.id][0] == "requeued"
    with pytest.raises(TaskFailed):
        await task.result(TIMEOUT_S)
    who = [note.split(" ", 2)[2] for note in (await task.info()).requeues]
    assert who == ["ada@desk: the disk has room", "bob@desk: again"]
    await delete_tasks(team.services, [task.id], reason="obsolete", actor="bob@desk")
    assert await _recorded(team) == [
        ("retry", {task.id}, "ada@desk", "the disk has room"),
        ("retry", {task.id}, "bob@desk", "again"),
        ("delete", {task.id}, "bob@desk", "obsolete"),
    ]


async def test_many_cancels_share_a_record(team: LocalTeam) -> None:
    """A program that cancels one task after another leaves a record a second; its end records the rest."""
    client = await team.client()
    handles = await _waiting_tasks(client, 60)
    for handle in handles:
        await handle.cancel("the user left")
    await client.aclose()
    found = await _recorded(team)
    assert set().union(*(tasks for _, tasks, _, _ in found)) == {handle.id for handle in handles}
    assert 1 <= len(found) <= 3


async def test_different_reasons_share_a_record(team: LocalTeam) -> None:
    """A record has the beginning of all reasons; it reads no desired state and adds nothing to the commands."""
    await team.work(Agent("editor"))
    store, keys = team.services.store, team.services.keys
    client = await team.client()
    handles = await _waiting_tasks(client, 60)
    for n, handle in enumerate(handles):
        await handle.cancel(f"not needed by order {n}", actor="shop")
    await client.aclose()
    found = await _recorded(team)
    assert set().union(*(tasks for _, tasks, _, _ in found)) == {handle.id for handle in handles}
    assert {actor for _, _, actor, _ in found} == {"shop"}
    assert 1 <= len(found) <= 3
    assert "not needed by order 0" in found[0][3]
    assert all(len(reason) <= 500 for *_, reason in found)
    assert any(reason.endswith(" …") for *_, reason in found)
    assert await store.execute("EXISTS", keys.control) == 0


async def test_records_remove_no_command(team: LocalTeam) -> None:
    """Commands stay in the list while more actions are recorded than it keeps; the newest of both are listed."""
    store, keys = team.services.store, team.services.keys
    await team.orc.admin.pause_agent("editor", reason="look")
    # As many records as the stream keeps, and twice as many as a page has.
    for _ in range(12):
        await store.pipeline([("XADD", keys.action_records, "*", "c", "old")] * 500)
    first, second = await _waiting_tasks(team.orc, 2)
    await cancel_tasks(team.services, [first.id, second.id], actor="ada@desk")
    assert await store.execute("XLEN", keys.action_records) < 5200
    assert await store.execute("XLEN", keys.control) == 1
    newest = await list_commands(team.services, limit=1)
    assert [record.kind for record in newest] == ["tasks"]
    assert [record.actor for record in await list_commands(team.services, kind="tasks")] == ["ada@desk"]
    assert [record.reason for record in await list_commands(team.services, kind="pause-agent")] == ["look"]


async def test_operators_are_told_what_was_not_recorded(team: LocalTeam) -> None:
    """A record that is refused undoes nothing: the action succeeded, and its report has the reason."""
    first, second = await _waiting_tasks(team.orc, 2)
    assert (await cancel_tasks(team.services, [first.id])).unrecorded == ""
    minute = await server_ms(team.services.store) // 60_000
    for each in (minute, minute + 1):
        await team.services.store.execute("SET", f"{team.services.keys.control}:{each}", 600, "EX", 120)
    report = await cancel_tasks(team.services, [second.id])
    assert "control.per_minute" in report.unrecorded
    assert (await second.info()).state is TaskState.CANCELLED
    assert [tasks for _, tasks, _, _ in await _recorded(team)] == [{first.id}]


async def test_what_was_done_before_a_failure_is_recorded(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """An action that fails in a later chunk has records of the tasks that it changed before."""
    monkeypatch.setattr(bulk, "CHUNK", 2)
    store = team.services.store
    ended = [one.id for one in await _waiting_tasks(team.orc, 3)]
    await cancel_tasks(team.services, ended, actor="setup")
    waiting = [one.id for one in await _waiting_tasks(team.orc, 3)]
    broken = [one.id for one in await _waiting_tasks(team.orc, 1)]
    for action, ids in ((cancel_tasks, waiting), (retry_tasks, ended), (delete_tasks, waiting)):
        await store.execute("SET", store.keys.task(broken[0]), "no hash")
        with pytest.raises(StoreError):
            await action(team.services, [*ids[:2], *broken, *ids[2:]], actor="ada@desk")
    await store.execute("DEL", store.keys.task(broken[0]))
    found = [(action, tasks) for action, tasks, actor, _ in await _recorded(team) if actor == "ada@desk"]
    assert found == [("cancel", set(waiting[:2])), ("retry", set(ended[:2])), ("delete", set(waiting[:2]))]


async def test_invalid_texts_change_nothing(team: LocalTeam) -> None:
    """A reason that cannot be recorded is refused before the task is cancelled."""
    (task,) = await _waiting_tasks(team.orc, 1)
    with pytest.raises(InvalidInput, match="the reason has 501 characters"):
        await cancel_tasks(team.services, [task.id], reason="x" * 501)
    assert (await task.info()).state is TaskState.READY


@pytest.mark.parametrize(("actor", "why"), [("x" * 501, "501 characters"), (123, "not int"), ("\ud800", "surrogate")])
async def test_an_invalid_actor_changes_nothing(team: LocalTeam, actor: Any, why: str) -> None:
    """No method takes an action whose record would be refused; the client stays open."""
    (task,) = await _waiting_tasks(team.orc, 1)
    locks = team.orc.locks("session:101")
    assert await locks.try_acquire("report") is not None
    seen = await locks.peek("report")
    assert seen is not None
    for action in (
        partial(task.cancel, actor=actor),
        partial(task.retry, actor=actor),
        partial(task.answer, "yes", actor=actor),
        partial(locks.take_away, seen, actor=actor),
        partial(team.orc.admin.schedules.add, "nightly", "unserved", every=60, actor=actor),
    ):
        with pytest.raises(InvalidInput, match=why):
            await action()
    assert (await task.info()).state is TaskState.READY
    assert await locks.peek("report") is not None
    assert await team.orc.admin.schedules.list() == []
    assert await task.cancel(actor="ada@desk") == "ended"


async def test_a_record_that_fails_leaves_the_client_open(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault while a record is encoded loses the record, not the client."""
    client = await team.client()
    first, second = await _waiting_tasks(client, 2)
    failed = anyio.Event()

    async def fail(*_: object, **__: object) -> str:
        failed.set()
        raise TypeError("not a text")

    with monkeypatch.context() as patched:
        patched.setattr(action_records, "record_tasks", fail)
        await first.cancel()
        with anyio.fail_after(TIMEOUT_S):
            await failed.wait()
    await second.cancel("recorded", actor="ada@desk")
    await client.aclose()
    assert [(tasks, actor) for _, tasks, actor, _ in await _recorded(team)] == [({second.id}, "ada@desk")]


async def test_a_handle_records_the_beginning_of_a_long_reason(team: LocalTeam) -> None:
    """A handle takes any reason; the record has its beginning."""
    (task,) = await _waiting_tasks(team.orc, 1)
    await task.cancel("x" * 501)
    await wait_for(lambda: _count(team, 1), "the record", TIMEOUT_S)
    assert [reason for *_, reason in await _recorded(team)] == ["x" * 500]


async def test_a_lock_that_is_taken_away(team: LocalTeam) -> None:
    """Any caller of `take_away` leaves a record; a lock that had another holder leaves none."""
    locks = team.orc.locks("session:101")
    lease = await locks.try_acquire("report")
    assert lease is not None
    seen = await locks.peek("report")
    assert seen is not None
    assert await locks.take_away(seen, reason="it hangs", actor="ada@desk")
    assert not await locks.take_away(seen)
    (record,) = await list_commands(team.services)
    assert (record.kind, record.actor, record.reason) == ("release-lock", "ada@desk", "it hangs")
