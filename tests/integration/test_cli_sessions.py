"""`orc sessions show|delete` typed beside a pool: what is shown, what goes, what refuses it, what is recorded."""

from __future__ import annotations

import re
import signal
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.to_thread
import pytest

from orchestrator import Agent, Message, Submission, TaskContext
from orchestrator.client.session_actions import delete_session
from orchestrator.core.errors import InvalidInput, StoreError
from orchestrator.erasure import session_tasks
from orchestrator.tasks import bulk
from orchestrator.tasks.queries import server_ms
from tests.helpers.terminal import Done, Terminal
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from tests.helpers.local_team import LocalTeam


class Orc(Protocol):
    """Types `orc …` and answers what it did."""

    async def __call__(self, *arguments: str) -> Done:
        """Run it."""


@pytest.fixture
def terminal(team: LocalTeam, tmp_path: Path) -> Terminal:
    """A terminal in which the pool of the team is named."""
    url = team.settings.redis.url
    assert url is not None
    return Terminal(tmp_path, ORC_REDIS__URL=url.get_secret_value(), ORC_PREFIX=team.settings.prefix)


@pytest.fixture
def orc(terminal: Terminal) -> Orc:
    """Runs a command in a thread, while the team goes on."""

    async def typed(*arguments: str) -> Done:
        return await anyio.to_thread.run_sync(partial(terminal.orc, *arguments))

    return typed


async def _fill(team: LocalTeam, session: str) -> list[str]:
    """A workspace with something of each kind, and two tasks that ended."""
    async with team.orc.workspace(session).edit(agent="ada") as ws:
        await ws.set("title", "planted text")
        await ws.set("title", "more planted text")
        await ws.append("findings", "planted text")
        await ws.add("tags", "planted text")
        await ws.scratch.set("draft", "planted text")
        await ws.transition("job", to="open", data="planted text")
        await ws.join("planted text")
        await ws.direct("bob", "STOP", "planted text")
    chat = team.orc.chat(session)
    await chat.append([{"role": "user", "content": "planted text"}] * 2, turn="planted text", op_id="first")
    await chat.set_summary("planted text", upto=1, version=1)
    await chat.set_meta({"topic": "planted text"})
    await chat.source("mail").append([Message({"content": "planted text"}, subject="planted text", tokens=3)])
    handles = await team.orc.submit_many([Submission("later", {"text": "planted text"}, session=session)] * 2)
    for handle in handles:
        await handle.cancel()
    return [handle.id for handle in handles]


async def test_lane_locks_and_last_event(team: LocalTeam, orc: Orc) -> None:
    """A session tells of the lanes of its open tasks, of its locks, and of its last change, alone and in the list."""
    await _fill(team, "s 1")
    await team.orc.submit("later", session="s 1", lane="orders/7")
    waiting = await team.orc.submit("later", session="s 1", lane="orders/7")
    shown = (await orc("sessions", "show", "s 1", "-o", "json")).json()
    assert (shown["lanes"], shown["locks"]) == ({"orders/7": 2}, [])
    assert (shown["last_event"]["what"], shown["last_event"]["task"]) == ("submitted", waiting.id)
    await team.orc.submit("later", session="other")
    async with team.orc.locks("session:s 1").hold("report"):
        shown = (await orc("sessions", "show", "s 1", "-o", "json")).json()
        assert [(lock["name"], lock["task"], lock["waiting"]) for lock in shown["locks"]] == [("report", None, 0)]
        assert not {"nonce", "at"} & shown["locks"][0].keys()
        assert "report" in (await orc("sessions", "show", "s 1")).out
        other, first = (await orc("sessions", "list", "-o", "json")).json()["items"]
    assert (other["session"], other["lane"], other["locks"], other["workspace"]) == ("other", None, 0, 0)
    assert (first["lane"], first["locks"], first["chat"], first["newest"]) == ("orders/7", 1, 3, waiting.id)
    assert first["workspace"] > 0
    assert first["last_event"]["what"] == "task"
    assert "orders/7" in (await orc("sessions", "list")).out
    async with team.orc.workspace("s 1").edit(agent="ada") as ws:
        await ws.set("title", "new")
    shown = (await orc("sessions", "show", "s 1", "-o", "json")).json()
    assert shown["last_event"]["what"] == "workspace"


async def test_show(team: LocalTeam, orc: Orc) -> None:
    """Tasks, open tasks and the size of the workspace; a session without tasks is known by its workspace."""
    await _fill(team, "s 1")
    waiting = await team.orc.submit("later", session="s 1")
    shown = (await orc("sessions", "show", "s 1", "-o", "json")).json()
    assert (shown["tasks"], shown["states"]) == (3, {"ready": 1, "cancelled": 2})
    assert shown["open_tasks"] == [waiting.id]
    workspace = shown["workspace"]
    assert (workspace["revision"], workspace["items"], workspace["events"]) == (7, 5, 7)
    assert workspace["bytes"] > 50
    assert workspace["changed_at"] < workspace["ends_at"]
    main, mail = sorted(shown["chats"], key=lambda chat: str(chat["source"] != "main"))
    assert [main[name] for name in ("messages", "gap", "summary_upto")] == [2, 0, 1]
    assert (mail["source"], mail["messages"], mail["tokens"]) == ("mail", 1, 3)
    assert main["last_message_at"] < main["ends_at"]
    text = (await orc("sessions", "show", "s 1")).out
    assert "items=5" in text
    assert [line.split()[:2] for line in text.splitlines() if "ago" in line and line[:4] == "mail"] == [["mail", "1"]]
    async with team.orc.workspace("alone\x1b").edit() as ws:
        await ws.set("a", 1)
    alone = await orc("sessions", "show", "alone\x1b")
    assert (alone.code, "\x1b" in alone.out, "alone\\x1b" in alone.out) == (0, False, True)
    missing = await orc("sessions", "show", "nobody")
    assert (missing.code, "nothing is stored of session 'nobody'" in missing.err) == (3, True)


async def test_delete(team: LocalTeam, orc: Orc, terminal: Terminal, redis_client: redis.Redis) -> None:
    """Workspace, events and ended tasks go, others stay; a person is asked first; the action is recorded."""
    ids = await _fill(team, "s 1")
    others = await _fill(team, "s 2")
    preview = await orc("sessions", "delete", "s 1", "--dry-run", "-o", "json")
    assert (preview.code, preview.json()["tasks"]) == (0, 2)
    refused = await orc("sessions", "delete", "s 1")
    assert refused.code == 4
    assert "delete session s 1: 2 tasks, a workspace of 5 items, 2 chats of 3 messages" in refused.err
    screen, code = await anyio.to_thread.run_sync(partial(terminal.answer, "sessions", "delete", "s 1", answer="n\n"))
    assert (code, "nothing was changed" in screen) == (4, True)
    assert (await orc("sessions", "show", "s 1")).code == 0
    done = await orc("sessions", "delete", "s 1", "--yes", "--reason", "asked for")
    assert (done.code, done.out) == (0, "deleted session s 1: 2 tasks, 1 workspace, 2 chats\n")
    assert (await orc("sessions", "show", "s 1")).code == 3
    assert [(await orc("tasks", "show", id_)).code for id_ in ids] == [3, 3]
    assert [one.session for one in await team.orc.tasks.sessions()] == ["s 2"]
    assert (await orc("sessions", "show", "s 2", "-o", "json")).json()["tasks"] == len(others)
    keys = team.services.keys.scope("session", "s 1")
    left = [name.decode().removeprefix(f"{keys.root}:") for name in redis_client.scan_iter(f"{keys.root}:*")]
    assert {name.partition(":")[0] for name in left} <= {"chat", "chats", "exec", "fence", "locks", "meta", "ops", "ws"}
    assert [name for name in left if name.startswith("ws:")] == ["ws:ev"]
    assert not [name for name in left if b"planted" in (redis_client.dump(f"{keys.root}:{name}") or b"")]
    (command,) = (await orc("control", "list", "--kind", "session", "-o", "json")).json()["items"]
    assert (command["reason"], command["words"]) == (
        "asked for",
        "session action=delete session=s 1 detail=2 tasks, 1 workspace, 2 chats",
    )
    assert (await orc("sessions", "delete", "s 1", "--yes")).code == 3
    async with team.orc.workspace("s 1").edit() as ws:
        assert (await ws.set("title", "new", if_version=0)).version > 2


async def test_open_tasks_refuse_it(team: LocalTeam, orc: Orc) -> None:
    """Tasks that wait and run are named, and nothing goes; with --cancel they end first."""
    agent, begun = Agent("worker", concurrency=5), anyio.Event()

    @agent.skill
    async def work() -> None:
        begun.set()
        await anyio.sleep(30)

    await team.work(agent)
    await _fill(team, "s")
    running = await team.orc.submit("work", session="s")
    waiting = await team.orc.submit("later", session="s")
    await begun.wait()
    refused = await orc("sessions", "delete", "s", "--yes")
    assert (refused.code, running.id in refused.err, waiting.id in refused.err) == (4, True, True)
    assert (await orc("sessions", "show", "s", "-o", "json")).json()["tasks"] == 4
    found = await delete_session(team.services, team.orc.locks(), "s")
    assert {str(state) for state in found.open_tasks.values()} == {"running", "ready"}
    done = await orc("sessions", "delete", "s", "--yes", "--cancel", "--timeout", "10s", "-o", "json")
    assert done.json() == {"session": "s", "tasks": 4, "workspace": True, "chats": 2, "left": 0}
    assert (await orc("sessions", "show", "s")).code == 3


async def test_held_locks_refuse_it(team: LocalTeam, orc: Orc) -> None:
    """An editor, an exclusive owner and an attempt of another pool keep the session as it is; they are named."""
    await _fill(team, "s")
    locks = team.orc.locks("session:s", owner="ann")
    async with locks.hold("desk"):
        held = await orc("sessions", "delete", "s", "--yes")
    assert (held.code, "desk of ann" in held.err) == (75, True)
    async with locks.hold_scope():
        held = await orc("sessions", "delete", "s", "--yes")
    assert (held.code, "held alone by ann" in held.err) == (75, True)
    assert (await orc("sessions", "show", "s", "-o", "json")).json()["workspace"]["items"] == 5
    assert (await orc("sessions", "delete", "s", "--yes")).code == 0


async def test_a_session_that_only_talks(team: LocalTeam, orc: Orc) -> None:
    """A chat without tasks and workspace is deleted too, and what was not there is not counted."""
    await team.orc.chat("s").append([{"role": "user", "content": "Hello"}])
    assert (await orc("sessions", "delete", "s", "--yes")).out == "deleted session s: 1 chat\n"
    assert (await orc("sessions", "show", "s")).code == 3


async def test_changes_wait_meanwhile(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of another program waits for the end of the delete, and begins a new workspace."""
    ids = await _fill(team, "s")
    deleting, changed = anyio.Event(), anyio.Event()
    delete = bulk.delete

    async def slow(*args: object, **named: object) -> object:
        deleting.set()
        with anyio.move_on_after(0.3) as waited:
            await changed.wait()
        assert waited.cancelled_caught
        return await delete(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(bulk, "delete", slow)

    async def change() -> None:
        await deleting.wait()
        async with team.orc.workspace("s").edit() as ws:
            await ws.set("title", "new")
        changed.set()

    async with anyio.create_task_group() as group:
        group.start_soon(change)
        report = await delete_session(team.services, team.orc.locks(), "s")
    assert (report.tasks, report.left) == (len(ids), 0)
    assert [*await team.orc.workspace("s").get()] == ["title"]


async def test_a_failure_is_continued(team: LocalTeam, orc: Orc, monkeypatch: pytest.MonkeyPatch) -> None:
    """What went before a failure is recorded; a repeat deletes the rest, also ids whose records have expired."""
    monkeypatch.setattr(session_tasks, "_CHUNK", 1)
    store, keys = team.services.store, team.services.keys
    _, second = await _fill(team, "s")
    (expired,) = await team.orc.submit_many([Submission("later", session="s")])
    await expired.cancel()
    await store.execute("DEL", keys.task(expired.id))
    locks = team.orc.locks("session:s")
    delete = bulk.delete

    async def failing(store_: object, ids: list[str], **named: object) -> object:
        if second in ids:
            raise StoreError("no answer")
        return await delete(store_, ids, **named)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(bulk, "delete", failing)
        with pytest.raises(StoreError, match="no answer"):
            await delete_session(team.services, locks, "s", reason="first try")
    listed = (await orc("control", "list", "--kind", "session", "-o", "json")).json()["items"]
    assert [(one["words"], one["reason"]) for one in listed] == [
        ("session action=delete session=s detail=1 task, 1 workspace, 2 chats", "first try")
    ]
    report = await delete_session(team.services, locks, "s")
    assert (report.tasks, report.workspace, report.left) == (1, False, 0)
    assert await team.orc.tasks.sessions() == ()


async def test_what_cannot_be_recorded_changes_nothing(team: LocalTeam, orc: Orc) -> None:
    """A reason that is too long is refused before; a record that Redis refuses is told."""
    await _fill(team, "s")
    with pytest.raises(InvalidInput, match="501 characters"):
        await delete_session(team.services, team.orc.locks(), "s", reason="x" * 501)
    assert (await orc("sessions", "show", "s")).code == 0
    minute = await server_ms(team.services.store) // 60_000
    for each in (minute, minute + 1):
        await team.services.store.execute("SET", f"{team.services.keys.control}:{each}", 600, "EX", 120)
    done = await orc("sessions", "delete", "s", "--yes")
    assert (done.code, "was not recorded" in done.err) == (0, True)


async def test_events(team: LocalTeam, orc: Orc) -> None:
    """The events of all tasks and of the workspace, in order, without values; a place continues."""
    agent = Agent("editor")

    @agent.skill
    async def edit(ctx: TaskContext) -> None:
        await ctx.progress(1, 2)
        await ctx.workspace.set("title", "planted text")
        await ctx.emit({"text": "planted text"})

    await team.work(agent)
    task = await team.orc.submit("edit", session="chat-7")
    await task.result(4.0)
    shown = await orc("sessions", "events", "chat-7", "-o", "json")
    assert (shown.code, shown.err) == (0, "")
    items = shown.json()["items"]
    kinds = [(one["kind"], one["task"]) for one in items]
    assert ("patch", None) in kinds
    assert kinds[-1] == ("succeeded", task.id)
    assert [one["at"] for one in items] == sorted(one["at"] for one in items)
    lines = (await orc("sessions", "events", "chat-7")).out.splitlines()
    assert len(lines) == len(items)
    assert re.fullmatch(rf"\d\d:\d\d:\d\d {task.id} succeeded", lines[-1])
    assert any(line.endswith(" workspace patch agent=editor") for line in lines)
    assert "planted" not in shown.out + "\n".join(lines)
    rest = await orc("sessions", "events", "chat-7", "--after", items[0]["id"], "-o", "id")
    assert rest.out.split() == [one["id"] for one in items[1:]]
    assert (await orc("sessions", "events", "chat-7", "--after", "nonsense")).code == 2
    assert (await orc("sessions", "events", "chat-7", "--follow", "-o", "json")).code == 2
    nothing = await orc("sessions", "events", "nothing")
    assert (nothing.out, nothing.code, "session nothing has no events" in nothing.err) == ("", 0, True)


async def test_events_that_follow(team: LocalTeam, terminal: Terminal) -> None:
    """With --follow the program goes on until it is interrupted."""
    with terminal.start("sessions", "events", "chat-7", "--follow") as following:
        task = await team.orc.submit("unserved", session="chat-7")
        await wait_for(lambda: f"{task.id} ready" in following.output, "the submit", 20.0)
        await task.cancel()
        await wait_for(lambda: f"{task.id} cancelled" in following.output, "the end", 10.0)
        following.signal(signal.SIGINT)
        assert await anyio.to_thread.run_sync(following.wait_exit) == 130
