"""`orc.subjects`: after an erasure no key of the prefix and no second storage holds the text about the person."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import (
    Agent,
    InvalidInput,
    JsonLinesStore,
    Message,
    Record,
    SecondaryStoreError,
    SqliteStore,
    SubjectErased,
    TaskContext,
    TaskFailed,
)
from orchestrator.control.commands import RecordErasure
from orchestrator.control.records import find, records
from orchestrator.control.signing import signer_of
from orchestrator.store.scoped import bind_scope
from orchestrator.subjects.places import Place, digest_of, subject_keys
from tests.helpers.local_team import TIMEOUT_S
from tests.helpers.text_scan import keys_with
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.helpers.local_team import LocalTeam

PLANTED = "planted7x"


async def _plant_in_session(team: LocalTeam, session: str) -> None:
    """Write the text to all parts of a session: workspace with events, tasks with arguments, output and results."""
    agent = Agent("ada")

    @agent.skill
    async def work(ctx: TaskContext, text: str) -> str:
        await ctx.emit({"said": text})
        await ctx.once("step", lambda: text)
        await ctx.workspace.scratch.set("draft", text)
        return text

    @agent.skill
    async def fail(text: str) -> None:
        raise ValueError(text)

    await team.work(agent)
    task = await team.orc.submit("work", {"text": PLANTED}, session=session)
    assert await task.result(TIMEOUT_S) == PLANTED
    failing = await team.orc.submit("fail", {"text": PLANTED}, session=session, max_attempts=1)
    with pytest.raises(TaskFailed):
        await failing.result(TIMEOUT_S)
    async with team.orc.workspace(session).edit(agent="ada") as space:
        await space.set("path", PLANTED)
        await space.set("path", 1)
        await space.append("log", {"said": PLANTED}, op_id="o1")
        await space.add("set", PLANTED)
        await space.transition("plan", to="open", data=PLANTED)
        await space.direct("bob", "STOP", PLANTED)
        await space.join(PLANTED)


async def _recorded(team: LocalTeam) -> list[RecordErasure]:
    store, signer = team.services.store, signer_of(team.settings, place=team.services.keys.root)
    found = await records(store, signer, limit=100)
    commands: list[Any] = [(await find(store, signer, one.id))[1] for one in found[::-1]]
    return [command for command in commands if isinstance(command, RecordErasure)]


async def test_an_assigned_session(team: LocalTeam) -> None:
    """A session of the person is emptied; one of another person stays; the record names neither person nor text."""
    await team.orc.subjects.assign("eve@example.org", session="s1")
    await _plant_in_session(team, "s1")
    async with team.orc.workspace("s2").edit() as other:
        await other.set("path", "kept")
    assert {name.rpartition("}:")[2].split(":")[0] for name in keys_with(team.settings, PLANTED)} >= {
        *("ws", "agent", "inbox", "dir", "task", "out", "replies"),
    }
    report = await team.orc.subjects.erase("eve@example.org", asked_by="ticket 7", reason="article 17", actor="op@desk")
    assert keys_with(team.settings, PLANTED) == []
    assert (report.sessions, report.tasks, report.left, report.unrecorded) == (1, 2, [], "")
    assert keys_with(team.settings, "eve@example.org") == []
    assert (await other.get())["path"].value == "kept"
    assert await team.orc.subjects.places("eve@example.org") == []
    begun, ended = await _recorded(team)
    assert (begun.stage, ended.stage, ended.sessions, ended.tasks) == ("begun", "ended", 1, 2)
    assert {begun.person, ended.person, report.person} == {digest_of(team.settings.prefix, "eve@example.org")}
    assert ended.asked_by == "ticket 7"
    again = await team.orc.subjects.erase("eve@example.org", asked_by="ticket 7")
    assert (again.sessions, again.tasks, again.left) == (0, 0, [])


async def test_tasks_that_have_not_ended(team: LocalTeam) -> None:
    """A task that waits is left and named; when it was cancelled, a repeat deletes it."""
    await team.orc.subjects.assign("eve", session="s1")
    task = await team.orc.submit("unserved", {"text": PLANTED}, session="s1")
    report = await team.orc.subjects.erase("eve", asked_by="ticket 7")
    assert report.left == ["tasks of session 's1' in pool default: 1 tasks have not ended; cancel them and repeat"]
    assert keys_with(team.settings, PLANTED)
    assert [place.kind for place in await team.orc.subjects.places("eve")] == ["tasks"]
    await task.cancel()
    report = await team.orc.subjects.erase("eve", asked_by="ticket 7")
    assert (report.tasks, report.left) == (1, [])
    assert keys_with(team.settings, PLANTED) == []


async def test_another_pool(team: LocalTeam) -> None:
    """Tasks of another pool are left to a client of that pool."""
    other = await team.client(pool="other")
    await other.subjects.assign("eve", session="s1")
    report = await team.orc.subjects.erase("eve", asked_by="ticket 7")
    assert len(report.left) == 1
    assert await team.orc.subjects.places("eve") == [Place("tasks", "s1", "other")]
    assert (await other.subjects.erase("eve", asked_by="ticket 7")).left == []


async def test_refusals(team: LocalTeam) -> None:
    """A person who was erased is not assigned again at once; the record must not name the person."""
    subjects = team.orc.subjects
    await subjects.erase("eve", asked_by="ticket 7")
    with pytest.raises(SubjectErased):
        await subjects.assign("eve", session="s1")
    refused: list[dict[str, Any]] = [
        {"asked_by": "Eve, by mail"},
        {"asked_by": "ticket", "reason": "as eve wants"},
        {"asked_by": " "},
    ]
    for said in refused:
        with pytest.raises(InvalidInput):
            await subjects.erase("eve", **said)
    assert len(await _recorded(team)) == 2
    await subjects.erase("eve", asked_by="stevens")


async def test_records(team: LocalTeam) -> None:
    """Records about the person go from both tiers of all agents; those about others and their order stay."""
    ada, bob = team.orc.memory("ada"), team.orc.memory("bob")
    for memory in (ada, bob):
        await memory.store(Record(step=1, kind="note", content=PLANTED, id="a", subject="eve", meta={"said": PLANTED}))
        await memory.store(Record(step=2, kind="note", content="kept", id="b", subject="bob"))
        await memory.store(Record(step=3, kind="note", content=PLANTED, id="c", subject="eve"), tier="im")
        await memory.supersede("a", "b")
    assert len(keys_with(team.settings, PLANTED)) == 6
    report = await team.orc.subjects.erase("eve", asked_by="ticket 7")
    assert (report.records, report.left) == (4, [])
    assert keys_with(team.settings, PLANTED) == []
    assert [record.id for record in await ada.recent()] == ["b"]
    with pytest.raises(SubjectErased):
        await ada.store(Record(step=4, kind="note", content=PLANTED, subject="eve"))
    assert keys_with(team.settings, PLANTED) == []


@pytest.mark.parametrize(
    ("lost", "fields", "removed"),
    [
        ("stm:subj:eve", (), 2),
        ("stm:exp", (), 2),
        ("stm:hdr", (), 3),
        ("stm:hdr", ("a",), 2),
        ("stm:rec", (), 0),
        ("stm:meta", (), 2),
    ],
)
async def test_records_of_a_damaged_memory(team: LocalTeam, lost: str, fields: tuple[str, ...], removed: int) -> None:
    """After any key of a memory was lost, an erasure leaves no text about the person; others' sound records stay."""
    ada = team.orc.memory("ada")
    await ada.store(Record(step=1, kind="note", content=PLANTED, id="a", subject="eve"))
    await ada.store(Record(step=2, kind="note", content="kept", id="b", subject="bob"))
    await ada.store(Record(step=3, kind="note", content=PLANTED, id="c", subject="eve"))
    key = ada.scope.keys.key(lost)
    assert await team.services.store.execute("HDEL" if fields else "DEL", key, *fields) == 1
    report = await team.orc.subjects.erase("eve", asked_by="ticket 7")
    assert keys_with(team.settings, PLANTED) == []
    assert (report.records, report.left) == (removed, [])
    assert await team.orc.subjects.places("eve") == []
    whole = lost not in {"stm:hdr", "stm:rec"} or bool(fields)
    assert [record.id for record in await ada.recent()] == (["b"] if whole else [])


@pytest.mark.parametrize("lost", ["meta", "ws:doc", "chats"])
async def test_a_damaged_session(team: LocalTeam, lost: str) -> None:
    """After a key of an assigned session was lost, an erasure leaves no text in its workspace and usual chat."""
    await team.orc.subjects.assign("eve", session="s1")
    async with team.orc.workspace("s1").edit() as space:
        await space.set("path", PLANTED)
        await space.append("log", {"said": PLANTED}, op_id="o1")
    await team.orc.chat("s1").append([{"content": PLANTED}])
    scope = bind_scope(team.services.store, team.settings, "session", "s1")
    assert await team.services.store.execute("DEL", scope.keys.key(lost)) == 1
    assert keys_with(team.settings, PLANTED)
    report = await team.orc.subjects.erase("eve", asked_by="ticket 7")
    assert keys_with(team.settings, PLANTED) == []
    assert (report.sessions, report.left) == (1, [])


async def test_messages(team: LocalTeam) -> None:
    """Messages about the person lose their text, with the summary; the others keep their numbers."""
    shared = team.orc.chat("s1")
    await shared.append([{"role": "user", "content": "kept"}])
    await shared.append([Message({"role": "user", "content": PLANTED}, subject="eve", turn="t")], op_id="o")
    await shared.append([{"role": "user", "content": "kept too"}, Message({"content": PLANTED}, subject="eve")])
    await shared.set_summary(PLANTED, upto=2, version=1)
    known = await shared.hydrate()
    report = await team.orc.subjects.erase("eve", asked_by="ticket 7")
    assert (report.messages, report.summaries, report.left) == (2, 1, [])
    assert keys_with(team.settings, PLANTED) == []
    newer = known.updated(await shared.hydrate(known=known))
    assert [(message.number, message.data["content"]) for message in newer.messages] == [(1, "kept"), (3, "kept too")]
    assert [message.number for message in await shared.page(5, 2)] == [1, 3]
    assert newer.gap == 0
    with pytest.raises(SubjectErased):
        await shared.append([Message({"content": PLANTED}, subject="eve")])
    last = await shared.pop()
    assert last is not None
    assert last.number == 3
    assert (await shared.append([{"content": "next"}])).numbers == (3,)


async def test_second_storage(team: LocalTeam, tmp_path: Path) -> None:
    """Copies of messages and summaries go too, and nothing brings them back; so do those of assigned sessions."""
    for number, store in enumerate([SqliteStore(tmp_path / "copy.db"), JsonLinesStore(tmp_path / "copies")]):
        subject, sessions = f"eve{number}", [f"shared{number}", f"own{number}"]
        await team.orc.subjects.assign(subject, session=sessions[1])
        for session in sessions:
            chat = team.orc.chat(session).kept_in(store)
            await chat.append([{"content": "kept"}, Message({"content": PLANTED}, subject=subject)])
            await chat.append([{"content": PLANTED if session.startswith("own") else "kept"}])
            await chat.set_summary(PLANTED, upto=2, version=1)
            await chat.save()
        assert _files_with(tmp_path, PLANTED)
        report = await team.orc.subjects.erase(subject, asked_by="ticket 7", stores=[store])
        assert report.stored >= 4
        assert keys_with(team.settings, PLANTED) == []
        await store.aclose()
        assert _files_with(tmp_path, PLANTED) == []
        chat = team.orc.chat(sessions[0]).kept_in(store)
        await chat.save()
        for key in ("q", "meta", "id"):
            await team.services.store.execute("DEL", chat._scope.keys.key(f"chat:main:{key}"))
        hydration = await chat.rehydrate()
        assert [message.data["content"] for message in hydration.messages] == ["kept", "kept"]
        assert hydration.summary is None
        await store.aclose()
        assert (keys_with(team.settings, PLANTED), _files_with(tmp_path, PLANTED)) == ([], [])


def _files_with(folder: Path, text: str) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes())


async def test_long_term_storage(team: LocalTeam, tmp_path: Path) -> None:
    """Records go from the outbox, where they wait for a storage that failed, and from the storage."""
    memory, store = team.orc.memory("ada"), SqliteStore(tmp_path / "saved.db")
    (tmp_path / "file").write_text("")
    failing = SqliteStore(tmp_path / "file" / "saved.db")
    for sink, step in ((store, 1), (failing, 2)):
        await memory.store(Record(step=step, kind="note", content=PLANTED, subject="eve"), tier="im")
        await memory.store(Record(step=step, kind="note", content="kept", subject="bob"), tier="im")
        with nullcontext() if sink is store else pytest.raises(SecondaryStoreError):
            await memory.offload(sink)
    assert [name.rpartition("}:")[2] for name in keys_with(team.settings, PLANTED)] == ["ltm:out"]
    report = await team.orc.subjects.erase("eve", asked_by="ticket 7", stores=[store])
    assert (report.records, report.stored) == (1, 1)
    await store.aclose()
    assert (keys_with(team.settings, PLANTED), _files_with(tmp_path, PLANTED)) == ([], [])
    assert await memory.offload(store) == 1
    assert [record.content async for record in memory.offloaded(store)] == ["kept", "kept"]
    await store.aclose()


async def test_a_place_is_noted_first(team: LocalTeam) -> None:
    """A place is noted before its text, once for many records; a refused store does not note it again."""
    memory = team.orc.memory("ada")
    with pytest.raises(InvalidInput):
        await memory.store(Record(step=1, kind="note", content={1, 2}, subject="eve"))
    assert await team.orc.subjects.places("eve") == []
    key = subject_keys(team.settings.prefix, "eve").key("places")
    await memory.store_many([Record(step=n, kind="note", content=n, subject="eve") for n in range(3)])
    until = await team.services.store.execute("ZRANGE", key, 0, -1, "WITHSCORES")
    await memory.store(Record(step=9, kind="note", content=9, subject="eve"))
    assert await team.services.store.execute("ZRANGE", key, 0, -1, "WITHSCORES") == until
    assert await team.orc.subjects.places("eve") == [Place("agent", "ada")]


async def test_text_that_is_written_meanwhile(team: LocalTeam) -> None:
    """While writers go on storing, an erasure ends, and what they store later is refused: nothing is left."""
    written = [0, 0]

    async def write(writer: int) -> None:
        orc = await team.client()
        with suppress(SubjectErased):
            while True:
                await orc.memory(f"agent{written[writer] % 3}").store(
                    Record(step=1, kind="note", content=PLANTED, subject="eve")
                )
                written[writer] += 1

    # Without the marks, an erasure never ends.
    with anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            for writer in range(2):
                group.start_soon(write, writer)
            await wait_for(lambda: min(written) > 20, "some records", TIMEOUT_S)
            report = await team.orc.subjects.erase("eve", asked_by="ticket 7")
    assert report.records == sum(written)
    assert keys_with(team.settings, PLANTED) == []


async def test_an_interrupted_erasure(team: LocalTeam) -> None:
    """An erasure that ended in the middle leaves the places that it has not reached; a repeat erases them."""
    for number in range(20):
        await team.orc.memory(f"a{number}").store(Record(step=1, kind="note", content=PLANTED, subject="eve"))
    with anyio.move_on_after(5) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(team.orc.subjects.erase, "eve", asked_by="ticket 7"))
            await wait_for(lambda: len(keys_with(team.settings, PLANTED)) < 20, "the first places", TIMEOUT_S)
            scope.cancel()
    left = len(keys_with(team.settings, PLANTED))
    assert 0 < left < 20
    report = await team.orc.subjects.erase("eve", asked_by="ticket 7")
    assert report.records == left
    assert keys_with(team.settings, PLANTED) == []
