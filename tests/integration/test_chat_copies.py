"""Chats with a copy in a second storage: what Redis loses comes back, and what was removed does not."""

from __future__ import annotations

import itertools
import json
import os
import sys
import textwrap
import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import ChatConflict, Hydration, JsonLinesStore, Message, SecondaryStoreError, SqliteStore
from tests.helpers.subprocesses import ROOT, environment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence
    from pathlib import Path

    import redis

    from orchestrator import Chat, StoredItem
    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam

SESSION = "S/1"


class CountingStore(SqliteStore):
    """An SQLite file that counts the loads of messages."""

    __slots__ = ("loads",)

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.loads = 0

    async def load(self, scope: str, resource: str, after: int | None = None) -> AsyncIterator[StoredItem]:
        """Load items."""
        self.loads += not resource.endswith(":head")
        async for item in super().load(scope, resource, after):
            yield item


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[CountingStore]:
    """A storage in the folder of the test."""
    async with CountingStore(tmp_path / "chats.db") as store:
        yield store


def messages(first: int, last: int, **options: Any) -> list[Message]:
    """Messages with these numbers as text."""
    return [Message({"role": "user", "content": f"text {n}"}, id=f"m{n}", **options) for n in range(first, last + 1)]


def texts(hydration: Hydration) -> list[int]:
    """The numbers in the texts, after a check of the numbers of the messages."""
    numbers = [message.number for message in hydration.messages]
    assert numbers == list(range(hydration.base + 1, hydration.seq + 1))
    revisions = [message.revision for message in hydration.messages]
    assert len(set(revisions)) == len(revisions)
    return [int(message.data["content"].split()[1]) for message in hydration.messages]


def lose(redis_client: redis.Redis, chat: Chat, parts: Iterable[str] = ("meta", "q", "id", "sum")) -> None:
    """Delete keys of the chat, as an eviction does."""
    keys = chat._scope.keys
    for part in parts:
        redis_client.delete(keys.key(keys.chat_part(chat.name, part)))


async def test_a_chat_that_expired_comes_back(
    team: LocalTeam, redis_client: redis.Redis, tmp_path: Path, store: CountingStore
) -> None:
    """Messages, fields and summary are as before, byte by byte; a program without the storage sees them then."""
    for kept in (store, JsonLinesStore(tmp_path / "lines")):
        chat = team.orc.chat(f"{SESSION}-{type(kept).__name__}").kept_in(kept)
        await chat.append(messages(1, 3, tokens=7, turn="t 1", subject="ann"))
        await chat.append([Message({"n": [1.0, 2**60, {}], "é": None}, id="x", calls=("c/1",), answers=())])
        await chat.set_meta({"title": "T", "n": [1]})
        await chat.set_summary("earlier", upto=2, version=4)
        before = await chat.hydrate()
        lose(redis_client, chat)
        assert (await team.orc.chat(chat.session).hydrate()).rev == 0
        after = await chat.hydrate()
        assert after.messages == before.messages
        assert (after.meta, after.summary) == (before.meta, before.summary)
        assert (after.source, after.gap, after.rev > before.rev) == ("secondary", 0, True)
        again = await team.orc.chat(chat.session).hydrate()
        assert (again.messages, again.source) == (after.messages, "redis")
        await chat.append(messages(9, 9))
        assert (await chat.hydrate()).seq == 5


LOSSES = [lost for count in (1, 2, 3) for lost in itertools.combinations(("meta", "q", "id"), count)]


@pytest.mark.parametrize("more", [0, 2])
@pytest.mark.parametrize("lost", LOSSES, ids="-".join)
async def test_any_key_may_be_lost(
    team: LocalTeam, redis_client: redis.Redis, store: CountingStore, lost: tuple[str, ...], more: int
) -> None:
    """Whatever keys are evicted, with or without an append by another program: the kept chat is whole again."""
    chat = team.orc.chat(f"{SESSION}-{'-'.join(lost)}").kept_in(store)
    await chat.append(messages(1, 30))
    lose(redis_client, chat, lost)
    if more:
        await team.orc.chat(chat.session).append(messages(31, 32))
    after = await chat.hydrate()
    assert texts(after) == list(range(1, 31 + more))
    assert after.gap == 0
    await chat.append(messages(1, 1))
    await chat.append(messages(40, 40))
    lose(redis_client, chat)
    assert texts(await chat.hydrate()) == [*range(1, 31 + more), 40]


async def test_a_lost_summary_comes_back(team: LocalTeam, redis_client: redis.Redis, store: CountingStore) -> None:
    """The summary alone is evicted; one that was removed does not come back, and one that is nowhere is sought once."""
    chat = team.orc.chat(SESSION).kept_in(store)
    await chat.append(messages(1, 2))
    await chat.set_summary("earlier", upto=1, version=3)
    lose(redis_client, chat, ["sum"])
    assert (await team.orc.chat(SESSION).hydrate()).restorable
    assert getattr((await chat.hydrate()).summary, "version", None) == 3
    await chat.clear()
    hydration = await chat.hydrate()
    assert (hydration.summary, hydration.restorable) == (None, False)
    await team.orc.chat(SESSION).set_summary("not saved", upto=2, version=4)
    lose(redis_client, chat, ["sum"])
    assert (await chat.hydrate()).summary is None
    assert not (await chat.hydrate()).restorable


async def test_what_was_removed_stays_away(team: LocalTeam, redis_client: redis.Redis, store: CountingStore) -> None:
    """Popped and replaced messages, and what a clear removed, do not come back; nor what another program removed."""
    chat = team.orc.chat(SESSION).kept_in(store)
    await chat.append(messages(1, 6))
    assert (await chat.pop() or messages(0, 0)[0]).id == "m6"
    await chat.upsert("m2", {"content": "text 22"}, version=2)
    lose(redis_client, chat)
    assert texts(await chat.hydrate()) == [1, 22, 3, 4, 5]
    await team.orc.chat(SESSION).pop()
    await chat.append(messages(7, 7))
    lose(redis_client, chat)
    assert texts(await chat.hydrate()) == [1, 22, 3, 4, 7]
    await chat.clear()
    await chat.append(messages(8, 9))
    lose(redis_client, chat)
    hydration = await chat.hydrate()
    assert (texts(hydration), hydration.gap) == ([8, 9], 0)
    await team.orc.chat(SESSION).clear()
    assert texts(await chat.hydrate()) == []
    await chat.append(messages(10, 10))
    lose(redis_client, chat)
    assert texts(await chat.hydrate()) == [10]
    with pytest.raises(ChatConflict):
        await chat.pop(expect="m9")


async def test_a_chat_cleared_after_its_end_stays_cleared(
    team: LocalTeam, redis_client: redis.Redis, store: CountingStore
) -> None:
    """A program without the storage clears a chat that is only there."""
    chat = team.orc.chat(SESSION).kept_in(store)
    await chat.append(messages(1, 3))
    lose(redis_client, chat)
    await team.orc.chat(SESSION).clear()
    assert texts(await chat.hydrate()) == []


async def test_lost_messages_that_were_not_saved_are_reported(
    team: LocalTeam, redis_client: redis.Redis, store: CountingStore
) -> None:
    """The gap stays, the saved messages come back, and the storage is asked once."""
    kept, bare = team.orc.chat(SESSION).kept_in(store), team.orc.chat(SESSION)
    await kept.append(messages(1, 4))
    await bare.append(messages(5, 7))
    lose(redis_client, kept, ["q"])
    assert (await bare.hydrate()).gap == 7
    await bare.append(messages(8, 8))
    store.loads = 0
    hydration = await kept.hydrate()
    assert texts(hydration) == [1, 2, 3, 4, 8]
    assert (hydration.gap, hydration.source, store.loads) == (3, "mixed", 1)
    hydration = await kept.hydrate()
    assert (hydration.gap, hydration.source, store.loads) == (3, "redis", 1)
    await kept.append(messages(9, 9))
    lose(redis_client, kept)
    assert texts(await kept.hydrate()) == [1, 2, 3, 4, 8, 9]


async def test_twenty_clients_cause_one_load(team: LocalTeam, redis_client: redis.Redis, store: CountingStore) -> None:
    """All of them get the whole chat."""
    chat = team.orc.chat(SESSION).kept_in(store)
    await chat.append(messages(1, 150))
    lose(redis_client, chat)
    store.loads = 0
    found = list[Hydration]()

    async def hydrate() -> None:
        found.append(await team.orc.chat(SESSION).kept_in(store).hydrate())

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(hydrate)
    assert [texts(each) for each in found] == [list(range(1, 151))] * 20
    assert store.loads == 1


@pytest.mark.parametrize("settings", [{"chat": {"max_messages": 20}}], indirect=True)
async def test_caps_hold_for_restored_messages(
    team: LocalTeam, redis_client: redis.Redis, store: CountingStore
) -> None:
    """The newest that have room come back, and nothing is reported as missing; the copy keeps all."""
    chat = team.orc.chat(SESSION).kept_in(store)
    for first in range(1, 60, 10):
        await chat.append(messages(first, first + 9))
    assert texts(await chat.hydrate()) == list(range(41, 61))
    lose(redis_client, chat)
    await team.orc.chat(SESSION).append(messages(61, 65))
    hydration = await chat.hydrate()
    assert (texts(hydration), hydration.gap) == (list(range(46, 66)), 0)
    copied = [item async for item in store.load(chat._scope.keys.root, "chat:main")]
    assert len(copied) == 60
    await chat.save()
    copied = [item async for item in store.load(chat._scope.keys.root, "chat:main")]
    assert [item.number for item in copied] == list(range(1, 66))


async def test_an_unchanged_or_growing_chat_is_saved_by_what_it_adds(
    team: LocalTeam, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save writes the new messages alone, and reads one page."""
    saved = list[int]()
    original = SqliteStore.save

    async def save(self: SqliteStore, scope: str, resource: str, items: Sequence[StoredItem]) -> None:
        saved.append(len(items))
        await original(self, scope, resource, items)

    monkeypatch.setattr(SqliteStore, "save", save)
    chat = team.orc.chat(SESSION)
    await chat.append(messages(1, 400))
    await chat.append(messages(401, 700))
    assert await chat.save(store) == 700
    assert await chat.save(store) == 0
    saved.clear()
    await chat.append(messages(701, 702))
    assert await chat.save(store) == 2
    assert saved == [2]


async def test_a_failing_storage_stops_no_change(
    team: LocalTeam, redis_client: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged; a later change saves all. Reads of a chat that is only there raise."""
    store = SqliteStore(tmp_path / "folder" / "chats.db")
    (tmp_path / "folder").write_text("in the way")
    chat = team.orc.chat(SESSION).kept_in(store)
    await chat.append(messages(1, 3))
    assert "chat_not_saved" in caplog.text
    hydration = await chat.hydrate()
    assert texts(hydration) == [1, 2, 3]
    assert "chat_not_restored" in caplog.text
    assert (await chat.pop() or messages(0, 0)[0]).id == "m3"
    with pytest.raises(SecondaryStoreError):
        await team.orc.chat("other").kept_in(store).hydrate()
    (tmp_path / "folder").unlink()
    await chat.append(messages(4, 4))
    lose(redis_client, chat)
    assert texts(await chat.hydrate()) == [1, 2, 4]
    await store.aclose()


async def test_a_kill_loses_no_message_that_was_appended(
    team: LocalTeam, redis_client: redis.Redis, settings: Settings, tmp_path: Path, store: CountingStore
) -> None:
    """A process is killed while it appends and saves; then Redis loses the chat."""
    body = f"""
        import sys
        import anyio
        from orchestrator import Orchestrator, SqliteStore
        async def main():
            async with Orchestrator() as orc:
                chat = orc.chat({SESSION!r}).kept_in(SqliteStore({str(tmp_path / "chats.db")!r}))
                for n in range(1, 1_000_000):
                    await chat.append([{{"content": f"text {{n}}"}}])
                    print(n, flush=True)
        anyio.run(main)
    """
    command = [sys.executable, "-c", textwrap.dedent(body)]
    printed = b""
    async with await anyio.open_process(command, cwd=ROOT, env={**os.environ, **environment(settings)}) as process:
        assert process.stdout is not None
        while printed.count(b"\n") < 20:
            printed += await process.stdout.receive()
        process.kill()
        async for part in process.stdout:
            printed += part
    acknowledged = printed.count(b"\n")
    lose(redis_client, team.orc.chat(SESSION))
    found = texts(await team.orc.chat(SESSION).rehydrate(store, last=10_000))
    assert found == list(range(1, len(found) + 1))
    assert len(found) >= acknowledged


async def test_a_long_chat_that_began_anew_is_kept_behind_its_copy(
    team: LocalTeam, redis_client: redis.Redis, store: CountingStore
) -> None:
    """More messages came than are numbered anew: each is saved once, and all come back in their order."""
    kept, bare = team.orc.chat(SESSION).kept_in(store), team.orc.chat(SESSION)
    await kept.append(messages(1, 3))
    lose(redis_client, kept)
    await bare.append(messages(4, 500))
    await bare.append(messages(501, 510))
    assert (await kept.append(messages(511, 511))).seq == 508
    head = await kept.head()
    assert (head.ahead, head.saved) == (3, head.rev)
    store.loads = 0
    assert await kept.save() == 0
    await kept.append(messages(512, 512))
    assert (store.loads, texts(await kept.hydrate(last=1_000))) == (0, list(range(4, 513)))
    await kept.pop()
    lose(redis_client, kept, ["meta"])
    await kept.append(messages(513, 513))
    lose(redis_client, kept)
    assert texts(await kept.hydrate(last=1_000)) == [*range(1, 512), 513]


class PausedStore(SqliteStore):
    """An SQLite file that waits once, in a load or a save, until the test goes on."""

    __slots__ = ("go", "paused", "what")

    def __init__(self, path: Path, what: str) -> None:
        super().__init__(path)
        self.what, self.paused, self.go = what, anyio.Event(), anyio.Event()

    async def pause(self, what: str) -> None:
        """Wait, if that is where."""
        if what == self.what and not self.paused.is_set():
            self.paused.set()
            await self.go.wait()

    async def load(self, scope: str, resource: str, after: int | None = None) -> AsyncIterator[StoredItem]:
        """Load items."""
        await self.pause("load")
        async for item in super().load(scope, resource, after):
            yield item

    async def save(self, scope: str, resource: str, items: Sequence[StoredItem]) -> None:
        """Save items."""
        await self.pause("save")
        await super().save(scope, resource, items)


async def test_a_session_held_alone_while_a_message_is_saved_fails_no_append(
    team: LocalTeam, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The message is stored, the save does not wait for the lock, and a later change saves it."""
    async with PausedStore(tmp_path / "paused.db", "load") as store:
        chat = team.orc.chat(SESSION).kept_in(store)
        seqs, done = list[int](), anyio.Event()

        async def append() -> None:
            seqs.append((await chat.append(messages(1, 1))).seq)
            done.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append)
            await store.paused.wait()
            async with team.orc.locks(f"session:{SESSION}").hold_scope(wait=0):
                store.go.set()
                with anyio.fail_after(5):
                    await done.wait()
        assert seqs == [1]
        assert "chat_not_saved" in caplog.text
        await chat.append(messages(2, 2))
        assert (await chat.head()).saved == (await chat.head()).rev
        assert texts(await chat.hydrate()) == [1, 2]


async def test_a_save_during_edits_saves_what_it_has_read(
    team: LocalTeam, redis_client: redis.Redis, tmp_path: Path
) -> None:
    """A message is replaced and another popped meanwhile: no error, and the next save does the rest."""
    async with PausedStore(tmp_path / "paused.db", "none") as store:
        kept, bare = team.orc.chat(SESSION).kept_in(store), team.orc.chat(SESSION)
        await kept.append(messages(1, 3))
        await bare.upsert("m1", {"content": "text 11"}, version=2)
        store.what = "save"
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kept.save)
            await store.paused.wait()
            await bare.upsert("m2", {"content": "text 22"}, version=2)
            await bare.pop()
            store.go.set()
        assert 1 < (await bare.head()).saved < (await bare.head()).rev
        await kept.save()
        lose(redis_client, kept)
        assert texts(await kept.hydrate()) == [11, 22]


async def test_a_save_while_the_list_is_lost_removes_nothing(
    team: LocalTeam, redis_client: redis.Redis, store: CountingStore
) -> None:
    """The list of an edited chat is evicted before a save: the copy keeps the messages that come back."""
    kept, bare = team.orc.chat(SESSION).kept_in(store), team.orc.chat(SESSION)
    await kept.append(messages(1, 3))
    await bare.pop()
    lose(redis_client, kept, ["q"])
    await kept.save()
    assert texts(await kept.hydrate())[:2] == [1, 2]


async def test_a_long_source_has_a_copy(team: LocalTeam, redis_client: redis.Redis, store: CountingStore) -> None:
    """The name is as long as names may be, and grows when it is encoded."""
    chat = team.orc.chat(SESSION).source("\u00fc " * 80).kept_in(store)
    assert not (await chat.hydrate()).messages
    await chat.append(messages(1, 2))
    lose(redis_client, chat)
    assert texts(await chat.hydrate()) == [1, 2]


DAMAGES = {
    "number": '{"id":"q","number":7,"version":9,"data":5}',
    "text": '{"id":"q","number":7,"version":9,"data":"nope"}',
    "null": '{"id":"q","number":7,"version":9,"data":"null"}',
    "version": '{"id":"q","number":7,"version":9999999999999999999,"data":"null"}',
    "list": '[{"id":"q"}]',
    "name": json.dumps(
        {
            "id": "q",
            "number": 1,
            "version": 9,
            "data": json.dumps(
                {
                    "version": 1,
                    "tokens": None,
                    "ms": 1,
                    "id": 'a"b',
                    "turn": None,
                    "subject": None,
                    "calls": None,
                    "answers": None,
                    "message": {},
                },
                separators=(",", ":"),
            ),
        }
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_lines_of_a_copy_are_skipped(
    team: LocalTeam, redis_client: redis.Redis, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    """The others come back, fields too if their file is whole."""
    chat = team.orc.chat(f"{SESSION}-{damage}").kept_in(JsonLinesStore(tmp_path))
    await chat.append(messages(1, 2))
    await chat.set_meta({"title": "T"})
    for file in list(tmp_path.iterdir()):  # noqa: ASYNC240 - a small folder
        file.write_text(file.read_text() + DAMAGES[damage] + "\n")
    lose(redis_client, chat)
    hydration = await chat.hydrate()
    assert [message.id for message in hydration.messages] == ["m1", "m2"]
    assert hydration.meta == {"title": "T"}
    assert "unreadable" in caplog.text


async def test_what_was_removed_without_the_storage_stays_away_after_the_end_of_the_chat(
    team: LocalTeam, redis_client: redis.Redis, store: CountingStore
) -> None:
    """Cleared and popped messages leave the storage when a program looks there; later ones with their numbers stay."""
    kept, bare = team.orc.chat(SESSION).kept_in(store), team.orc.chat(SESSION)
    await kept.append(messages(1, 5))
    await bare.pop()
    await bare.pop()
    lose(redis_client, kept)
    assert texts(await kept.hydrate()) == [1, 2, 3]
    copied = [item.id async for item in store.load(kept._scope.keys.root, "chat:main")]
    assert copied == ["m1", "m2", "m3"]
    await kept.append(messages(6, 7))
    gone = kept._scope.keys.key(kept._scope.keys.chat_part("main", "gone"))
    assert not redis_client.exists(gone)
    lose(redis_client, kept)
    assert texts(await kept.hydrate()) == [1, 2, 3, 6, 7]
    await bare.clear()
    assert redis_client.pttl(gone) > 0
    lose(redis_client, kept)
    assert not (await kept.hydrate()).messages
    assert not [item async for item in store.load(kept._scope.keys.root, "chat:main")]
    await kept.append(messages(8, 8))
    assert not redis_client.exists(gone)
    lose(redis_client, kept)
    assert texts(await kept.hydrate()) == [8]


async def test_a_pop_that_the_storage_did_not_get_is_not_undone(
    team: LocalTeam, redis_client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage fails, then Redis loses the chat: the popped message stays away."""
    async with SqliteStore(tmp_path / "chats.db") as store:
        chat = team.orc.chat(SESSION).kept_in(store)
        await chat.append(messages(1, 3))

        async def fail(*_: object, **__: object) -> None:
            raise SecondaryStoreError("full")

        with monkeypatch.context() as broken:
            broken.setattr(SqliteStore, "delete", fail)
            assert (await chat.pop() or messages(0, 0)[0]).id == "m3"
        lose(redis_client, chat)
        assert texts(await chat.hydrate()) == [1, 2]


async def test_truncate_saves_first(
    team: LocalTeam, redis_client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that were not saved are saved, or stay in Redis."""
    async with SqliteStore(tmp_path / "chats.db") as store:
        chat = team.orc.chat(SESSION).kept_in(store)
        await chat.append(messages(1, 1))
        await team.orc.chat(SESSION).append(messages(2, 4))

        async def fail(*_: object, **__: object) -> None:
            raise SecondaryStoreError("full")

        with monkeypatch.context() as broken:
            broken.setattr(SqliteStore, "save", fail)
            with pytest.raises(SecondaryStoreError):
                await chat.truncate(1)
        assert texts(await chat.hydrate()) == [1, 2, 3, 4]
        assert await chat.truncate(1) == 3
        lose(redis_client, chat)
        assert texts(await chat.hydrate()) == [1, 2, 3, 4]


@pytest.mark.parametrize("settings", [{"chat": {"max_messages": 20}}], indirect=True)
async def test_messages_that_a_cap_dropped_before_they_were_saved_are_reported(
    team: LocalTeam, store: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once; a cap that drops saved messages is not."""
    kept, bare = team.orc.chat(SESSION).kept_in(store), team.orc.chat(SESSION)
    await kept.append(messages(1, 10))
    await kept.append(messages(11, 30))
    assert "chat_copy_incomplete" not in caplog.text
    await bare.append(messages(31, 50))
    await bare.append(messages(51, 51))
    await kept.append(messages(52, 52))
    await kept.append(messages(53, 53))
    assert caplog.text.count("chat_copy_incomplete") == 1


@pytest.mark.parametrize("settings", [{"chat": {"max_messages": 100}}], indirect=True)
async def test_a_restore_holds_no_more_of_a_copy_than_a_chat_has_room_for(
    team: LocalTeam, redis_client: redis.Redis, store: CountingStore
) -> None:
    """A copy of 30 MB costs a restore less than 20 MB of memory; the newest messages come back."""
    chat = team.orc.chat(SESSION).kept_in(store)
    await chat.append(messages(1, 1))
    (item,) = [item async for item in store.load(chat._scope.keys.root, "chat:main")]
    text = b'"text 1 ' + b"x" * 10_000
    for first in range(2, 3_000, 500):
        copies = [
            replace(item, id=f"m{n}", number=n, data=item.data.replace(b'"m1"', b'"m%d"' % n).replace(b'"text 1', text))
            for n in range(first, first + 500)
        ]
        await store.save(chat._scope.keys.root, "chat:main", copies)
    lose(redis_client, chat)
    tracemalloc.start()
    try:
        hydration = await chat.hydrate()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [message.number for message in hydration.messages] == list(range(2_902, 3_002))
    assert hydration.gap == 0
    assert peak < 20_000_000
