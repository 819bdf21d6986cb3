"""Actions without a command leave a record with actor and reason, whoever takes them: a program or an operator."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, Reject, TaskContext, sync
from orchestrator.chat.model import Message
from orchestrator.client import action_records
from orchestrator.client.task_actions import cancel_tasks, delete_tasks, retry_tasks
from orchestrator.control.commands import RecordStateChange, RecordTasks
from orchestrator.control.records import find
from orchestrator.control.sending import this_actor
from orchestrator.control.signing import signer_of
from orchestrator.core.errors import InvalidInput, StoreError, TaskFailed
from orchestrator.memory.forgetting import RecordFilter
from orchestrator.memory.model import Record
from orchestrator.subjects.places import digest_of
from orchestrator.tasks import bulk
from orchestrator.tasks.flows import Flow
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.queries import server_ms
from orchestrator.tasks.submission import Submission
from orchestrator.views.control import list_commands
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from orchestrator.chat.chat import Chat
    from orchestrator.client.client import Orchestrator
    from orchestrator.client.handle import TaskHandle
    from orchestrator.memory.memory import Memory
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


async def test_the_cancel_of_a_flow_records_all_of_its_tasks(team: LocalTeam) -> None:
    """It is one record, as that of a bulk cancel; what had ended before is not in it."""
    flow = Flow("large")
    for _ in range(3):
        flow.task("unserved")
    handle = await team.orc.submit_flow(flow)
    first, *others = handle.handles
    await first.cancel("wrong input", actor="ada@desk")
    await handle.cancel("enough", actor="bob@desk")
    await wait_for(lambda: _count(team, 2), "the records", TIMEOUT_S)
    assert (await _recorded(team))[1] == ("cancel", {one.id for one in others}, "bob@desk", "enough")


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


async def _changes(team: LocalTeam) -> list[tuple[str, tuple[str, ...], str]]:
    """Action, scopes and actor of each change of state that is recorded, oldest first."""
    found: list[tuple[str, tuple[str, ...], str]] = []
    for record in reversed(await list_commands(team.services, kind="change", limit=100)):
        _, command = await find(team.services.store, signer_of(team.settings, place=team.services.keys.root), record.id)
        assert isinstance(command, RecordStateChange)
        found.append((command.action, command.scopes, record.actor))
    return found


async def _edit(orc: Orchestrator) -> None:
    async with orc.workspace("101").edit() as workspace:
        await workspace.set("report", 1)


async def _clear_workspace(orc: Orchestrator) -> None:
    async with orc.workspace("101").edit() as workspace:
        await workspace.clear()


async def _direct(orc: Orchestrator) -> None:
    async with orc.workspace("101").edit() as workspace:
        await workspace.direct("editor", "STOP")


async def _chat(orc: Orchestrator, change: Callable[[Chat], Awaitable[object]]) -> None:
    chat = orc.chat("101")
    await chat.append([Message({"role": "user"}, id="m1"), Message({"role": "user"}, id="m2")])
    await change(chat)


async def _memory(orc: Orchestrator, change: Callable[[Memory], Awaitable[object]]) -> None:
    memory = orc.memory(user="ada")
    await memory.store(Record(step=1, kind="fact", content="a fact", id="r1"))
    await change(memory)


CHANGES: Final[dict[str, tuple[Callable[[Orchestrator], Awaitable[object]], set[tuple[str, str]]]]] = {
    "edit": (_edit, {("change-workspace", "session:101")}),
    "clear": (_clear_workspace, {("clear-workspace", "session:101")}),
    "direct": (_direct, {("direct-agent", "session:101")}),
    "append": (lambda orc: _chat(orc, lambda chat: chat.head()), set()),
    "pop": (lambda orc: _chat(orc, lambda chat: chat.pop()), {("change-chat", "session:101")}),
    "truncate": (lambda orc: _chat(orc, lambda chat: chat.truncate(1)), {("change-chat", "session:101")}),
    "patch": (
        lambda orc: _chat(orc, lambda chat: chat.patch("m1", {"role": "user", "content": "new"}, if_version=1)),
        {("change-chat", "session:101")},
    ),
    "clear chat": (lambda orc: _chat(orc, lambda chat: chat.clear()), {("clear-chat", "session:101")}),
    "store": (lambda orc: _memory(orc, lambda memory: memory.stats()), set()),
    "update": (lambda orc: _memory(orc, lambda memory: memory.update("r1", content="new")), {("change-memory", "ada")}),
    "delete": (lambda orc: _memory(orc, lambda memory: memory.delete("r1")), {("forget-memory", "ada")}),
    "forget": (lambda orc: _memory(orc, lambda memory: memory.forget(RecordFilter())), {("forget-memory", "ada")}),
    "state": (lambda orc: orc.agents.set_state("editor", {"mood": 1}), {("change-agent-state", "agent:editor")}),
    "bump": (lambda orc: orc.agents.bump("editor", "turns"), {("change-agent-state", "agent:editor")}),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_changes_of_state_by_a_program(team: LocalTeam, change: str) -> None:
    """What a program changes or removes outside a task is recorded with its actor; what it adds is not."""
    make, expected = CHANGES[change]
    client = await team.client()
    await make(client)
    await client.aclose()
    of_ada = f"user:{digest_of(team.settings.prefix, 'ada')}"
    found = await _changes(team)
    assert {(action, scope.replace(of_ada, "ada")) for action, scopes, _ in found for scope in scopes} == expected
    assert {actor for *_, actor in found} <= {this_actor()}


async def test_changes_of_a_task_have_no_record(team: LocalTeam) -> None:
    """Changes through the context are part of the task, which has an actor of its own."""
    agent = Agent("editor")

    @agent.skill
    async def edit(ctx: TaskContext) -> None:
        await ctx.workspace.set("report", 1)
        await ctx.agent_state.set({"mood": 1})
        await ctx.chat.append([{"role": "user", "content": "one"}])
        await ctx.chat.clear()

    worker = await team.work(agent)
    await (await team.orc.submit("edit", session="101")).result(TIMEOUT_S)
    await team.stop(worker)
    assert await _changes(team) == []


async def test_many_changes_share_a_record(team: LocalTeam) -> None:
    """A program that edits all the time leaves few records, and its end records the rest."""
    client = await team.client()
    for number in range(60):
        await client.agents.bump(f"agent-{number}", "turns")
    await client.aclose()
    found = await _changes(team)
    assert {scope for _, scopes, _ in found for scope in scopes} == {f"agent:agent-{n}" for n in range(60)}
    assert 2 <= len(found) <= 4


async def test_a_record_is_stored_before_the_call_returns(team: LocalTeam) -> None:
    """A process that is killed after a cancel or retry has left its record."""
    client = await team.client()
    (task,) = await _waiting_tasks(client, 1)
    await task.cancel("first", actor="ada@desk")
    assert [(action, reason) for action, _, _, reason in await _recorded(team)] == [("cancel", "first")]
    other = await team.client()
    await other.retry(task.id, "second", actor="ada@desk")
    assert [(action, reason) for action, _, _, reason in await _recorded(team)][1:] == [("retry", "second")]


async def test_a_cancel_by_a_handler(team: LocalTeam) -> None:
    """A handler that cancels its child leaves a record in the name of its worker's process."""
    agent = Agent("editor")

    @agent.skill
    async def parent(ctx: TaskContext) -> str:
        child = await ctx.submit("unserved")
        return await child.cancel("not needed")

    await team.work(agent)
    assert await (await team.orc.submit("parent")).result(TIMEOUT_S) == "ended"
    ((action, tasks, actor, reason),) = await _recorded(team)
    assert (action, len(tasks), actor, reason) == ("cancel", 1, this_actor(), "not needed")


async def test_the_blocking_client_leaves_the_same_records(team: LocalTeam) -> None:
    """Cancels, retries and changes of state through `orchestrator.sync` are recorded."""

    def act() -> str:
        with sync.Orchestrator(settings=team.settings) as orc:
            task = orc.submit("unserved")
            task.cancel("blocking", actor="ada@desk")
            orc.retry(task.id, "again", actor="ada@desk")
            orc.chat("101").append([{"role": "user", "content": "one"}])
            orc.chat("101").clear()
            return str(task.id)

    id_ = await anyio.to_thread.run_sync(act)
    assert await _recorded(team) == [
        ("cancel", {id_}, "ada@desk", "blocking"),
        ("retry", {id_}, "ada@desk", "again"),
    ]
    assert await _changes(team) == [("clear-chat", ("session:101",), this_actor())]
