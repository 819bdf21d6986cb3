"""Second storages: both shipped ones behave alike, with several processes, after a kill and on a full disk."""

from __future__ import annotations

import os
import sys
import textwrap
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import SecondaryStoreError
from orchestrator.secondary.json_lines import JsonLinesStore
from orchestrator.secondary.model import SecondaryStore, StoredItem
from orchestrator.secondary.sqlite import SqliteStore
from tests.helpers.subprocesses import ROOT

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

pytestmark = pytest.mark.anyio

SCOPE, CHAT = "orc:test:acme:{session:s1}", "chat:main"
SLOTS = {"sqlite": "SqliteStore(path / 'chats.db')", "lines": "JsonLinesStore(path / 'chats')"}


@pytest.fixture(params=["sqlite", "lines"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of store."""
    return str(request.param)


@pytest.fixture
async def store(kind: str, tmp_path: Path) -> AsyncIterator[SecondaryStore]:
    """A store, closed after the test."""
    store = make(kind, tmp_path)
    yield store
    await store.aclose()


def make(kind: str, path: Path) -> SecondaryStore:
    """Make a store in this folder."""
    return SqliteStore(path / "chats.db") if kind == "sqlite" else JsonLinesStore(path / "chats")


def item(id_: str, number: int = 1, version: int = 1, data: bytes = b'"text"', subject: str = "") -> StoredItem:
    """Make an item."""
    return StoredItem(id_, number, version, data, subject)


async def all_of(
    store: SecondaryStore, scope: str = SCOPE, resource: str = CHAT, after: int | None = None
) -> list[StoredItem]:
    """Load a resource."""
    return [one async for one in store.load(scope, resource, after)]


async def test_items_come_back_in_the_order_of_their_numbers_byte_by_byte(store: SecondaryStore) -> None:
    """Items come back in the order of their numbers byte by byte."""
    items = [
        item("b", 2, 7, b'{"n": 1.0, "big": 9007199254740993, "e": []}'),
        item("a", 1, 3, "naïve ☃\n\r\u2028".encode(), subject="user-7"),
        item("d", -5, 1, b""),
        item("c", 2, 8, b"\xff\x00\xfe"),
    ]
    await store.save(SCOPE, CHAT, items)
    assert await all_of(store) == [items[2], items[1], items[0], items[3]]
    assert await all_of(store, after=1) == [items[0], items[3]]


async def test_a_long_resource_is_loaded_in_pages_without_a_gap(store: SecondaryStore) -> None:
    """A long resource is loaded in pages without a gap."""
    items = [item(f"{n:05}", n // 7, 1) for n in range(1700)]
    await store.save(SCOPE, CHAT, items)
    assert await all_of(store) == items


async def test_the_higher_version_of_an_item_stays_whatever_comes_later(store: SecondaryStore) -> None:
    """The higher version of an item stays whatever comes later."""
    await store.save(SCOPE, CHAT, [item("a", 1, 5, b"new", "user-1")])
    await store.save(SCOPE, CHAT, [item("a", 1, 4, b"old"), item("a", 1, 5, b"same")])
    assert await all_of(store) == [item("a", 1, 5, b"new", "user-1")]
    await store.save(SCOPE, CHAT, [item("a", 9, 6, b"newer")])
    assert await all_of(store) == [item("a", 9, 6, b"newer")]


async def test_a_late_save_does_not_bring_back_what_was_removed(store: SecondaryStore) -> None:
    """A late save does not bring back what was removed."""
    await store.save(SCOPE, CHAT, [item("a", 1, 1), item("b", 2, 2), item("c", 3, 3)])
    assert await store.delete(SCOPE, CHAT, ["b", "unknown"], upto=4) == 1
    await store.save(SCOPE, CHAT, [item("b", 2, 2), item("b", 2, 4), item("c", 3, 3)])
    assert [one.id for one in await all_of(store)] == ["a", "c"]
    await store.save(SCOPE, CHAT, [item("b", 2, 5)])
    assert [one.id for one in await all_of(store)] == ["a", "b", "c"]

    assert await store.delete(SCOPE, CHAT, None, upto=6) == 3
    await store.save(SCOPE, CHAT, [item("d", 1, 6), item("e", 2, 7)])
    assert [one.id for one in await all_of(store)] == ["e"]


async def test_a_delete_keeps_what_was_written_after_it(store: SecondaryStore) -> None:
    """A delete keeps what was written after it."""
    await store.save(SCOPE, CHAT, [item("a", 1, 5), item("b", 2, 9)])
    assert await store.delete(SCOPE, CHAT, ["a", "b"], upto=5) == 1
    assert await store.delete(SCOPE, CHAT, None, upto=8) == 0
    assert [one.id for one in await all_of(store)] == ["b"]


async def test_scopes_and_resources_do_not_mix(store: SecondaryStore) -> None:
    """Scopes and resources do not mix."""
    places = [(SCOPE, CHAT), (SCOPE.upper(), CHAT), (SCOPE, "chat:Main"), (SCOPE + "x" * 300, CHAT)]
    for number, (scope, resource) in enumerate(places):
        await store.save(scope, resource, [item("a", number)])
    await store.delete(SCOPE, "chat:Main", None, upto=10)
    found = [[one.number for one in await all_of(store, *place)] for place in places]
    assert found == [[0], [1], [], [3]]


async def test_the_text_about_a_person_leaves_the_disk(store: SecondaryStore, tmp_path: Path) -> None:
    """The text about a person leaves the disk."""
    other = "{session:other}"
    await store.save(SCOPE, CHAT, [item("a", 1, 1, b"planted-one", "ann"), item("b", 2, 2, b"stays", "bob")])
    await store.save(other, "stm", [item("a", 1, 1, b"planted-two", "ann"), item("c", 2, 2, b"removed-one")])
    assert "planted-one" in on_disk(tmp_path)  # the search finds what is there
    assert await store.erase("ann") == 2
    assert await store.erase("ann") == 0
    assert await store.delete(other, "stm", ["c"], upto=2) == 1
    assert [one.data for one in await all_of(store)] == [b"stays"]
    assert await all_of(store, other, "stm") == []
    left = on_disk(tmp_path)
    assert [text for text in ("planted", "removed-one", "ann") if text in left] == []
    assert await store.erase("") == 0


def on_disk(path: Path) -> str:
    """Return the text of all files."""
    return "".join(file.read_bytes().decode(errors="replace") for file in path.rglob("*") if file.is_file())


@given(
    calls=st.lists(
        st.one_of(
            st.tuples(st.just("save"), st.sampled_from("abc"), st.integers(1, 6)),
            st.tuples(st.just("delete"), st.sampled_from(["a", "b", "c", None]), st.integers(1, 6)),
        ),
        max_size=30,
    )
)
@pytest.mark.parametrize("kind", ["sqlite", "lines"])
def test_any_order_of_saves_and_deletes_ends_as_in_the_model(
    kind: str, calls: list[tuple[str, Any, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any order of saves and deletes ends as in the model."""

    async def check() -> None:
        store, kept, gone = make(kind, tmp_path_factory.mktemp("model")), dict[str, int](), dict[str | None, int]()
        for what, id_, version in calls:
            if what == "save":
                await store.save(SCOPE, CHAT, [item(id_, 1, version)])
                if version > max(kept.get(id_, 0), gone.get(id_, 0), gone.get(None, 0)):
                    kept[id_] = version
            else:
                await store.delete(SCOPE, CHAT, None if id_ is None else [id_], upto=version)
                gone[id_] = max(version, gone.get(id_, 0))
                kept = {k: v for k, v in kept.items() if v > gone.get(k, 0) and v > gone.get(None, 0)}
        assert {one.id: one.version for one in await all_of(store)} == kept
        await store.aclose()

    anyio.run(check)


# ------------------------------------------------------------------------------------------------------------ processes


def program(kind: str, path: Path, body: str) -> list[str]:
    """Return the command of a process that has `store` and `item`."""
    text = f"""
        import os, resource, signal, sys
        from pathlib import Path
        import anyio
        from orchestrator.core.errors import SecondaryStoreError
        from orchestrator.secondary.json_lines import JsonLinesStore
        from orchestrator.secondary.model import StoredItem
        from orchestrator.secondary.sqlite import SqliteStore
        path = Path({os.fspath(path)!r})
        async def main():
            store = {SLOTS[kind]}
    """
    return [
        sys.executable,
        "-c",
        textwrap.dedent(text) + textwrap.indent(textwrap.dedent(body), "    ") + "\nanyio.run(main)",
    ]


async def test_processes_save_at_the_same_time(kind: str, store: SecondaryStore, tmp_path: Path) -> None:
    """Processes save at the same time."""
    body = """
        me = sys.argv[1]
        for n in range(40):
            await store.save("s", "r", [StoredItem(f"{me}-{n}", n, 1, b"x" * 200), StoredItem("all", 0, n, b"")])
            if n % 10 == 9:
                await store.delete("s", "r", [f"{me}-{n}"], upto=5)
    """
    async with anyio.create_task_group() as tasks:
        for name in "abc":
            tasks.start_soon(partial(anyio.run_process, [*program(kind, tmp_path, body), name], cwd=ROOT))
    found = {one.id: one for one in await all_of(store, "s", "r")}
    expected = {f"{name}-{n}" for name in "abc" for n in range(40) if n % 10 != 9}
    assert set(found) == expected | {"all"}
    assert found["all"].version == 39


async def test_a_kill_leaves_every_acknowledged_save_and_no_part_of_another(
    kind: str, store: SecondaryStore, tmp_path: Path
) -> None:
    """A kill leaves every acknowledged save and no part of another."""
    body = """
        for n in range(1_000_000):
            await store.save("s", "r", [StoredItem(f"{n}-{k}", n, 1, b"y" * 500) for k in range(20)])
            sys.stdout.write(f"{n}\\n")
            sys.stdout.flush()
    """
    async with await anyio.open_process(program(kind, tmp_path, body), cwd=ROOT) as process:
        assert process.stdout is not None
        printed = b""
        while printed.count(b"\n") < 10:
            printed += await process.stdout.receive()
        process.kill()
        async for part in process.stdout:
            printed += part
    acknowledged = printed.count(b"\n") - 1

    batches = dict[int, int]()
    for one in await all_of(store, "s", "r"):
        batches[one.number] = batches.get(one.number, 0) + 1
    # A line file may end in the batch that the kill met; its repeat completes it.
    complete = [n for n, count in batches.items() if count == 20]
    assert set(range(acknowledged + 1)) <= set(complete)
    assert len(batches) - len(complete) <= (0 if kind == "sqlite" else 1)
    await store.save("s", "r", [item(f"{acknowledged + 1}-{k}", acknowledged + 1) for k in range(20)])
    assert len([one for one in await all_of(store, "s", "r") if one.number == acknowledged + 1]) == 20


async def test_a_full_disk_refuses_a_save_and_leaves_nothing_of_it(
    kind: str, store: SecondaryStore, tmp_path: Path
) -> None:
    """A full disk refuses a save and leaves nothing of it."""
    body = """
        await store.save("s", "r", [StoredItem("a", 1, 1, b"kept")])
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
        try:
            await store.save("s", "r", [StoredItem(f"b{n}", n, 1, b"z" * 10_000) for n in range(100)])
        except SecondaryStoreError as failed:
            print(failed)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        await store.save("s", "r", [StoredItem("c", 2, 1, b"kept too")])
    """
    done = await anyio.run_process(program(kind, tmp_path, body), cwd=ROOT)
    assert b"could not be changed" in done.stdout
    assert [one.id for one in await all_of(store, "s", "r")] == ["a", "c"]


async def test_a_folder_that_cannot_be_made_is_named(kind: str, tmp_path: Path) -> None:
    """A folder that cannot be made is named."""
    (tmp_path / "chats").write_text("a file")
    store = SqliteStore(tmp_path / "chats" / "x.db") if kind == "sqlite" else JsonLinesStore(tmp_path / "chats")
    with pytest.raises(SecondaryStoreError, match="chats"):
        await store.save(SCOPE, CHAT, [item("a")])


# ------------------------------------------------------------------------------------------------------- files of lines


@pytest.fixture
def lines(tmp_path: Path) -> JsonLinesStore:
    """A store in the folder of the test."""
    return JsonLinesStore(tmp_path)


def only_file(path: Path) -> Path:
    """Return the file of the store."""
    (file,) = path.glob("*.jsonl")
    return file


async def test_a_torn_last_line_is_skipped_and_does_not_swallow_the_next(
    lines: JsonLinesStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A torn last line is skipped and does not swallow the next."""
    await lines.save(SCOPE, CHAT, [item("a", 1), item("b", 2)])
    file = only_file(tmp_path)
    file.write_bytes(file.read_bytes()[:-9])
    assert [one.id for one in await all_of(lines)] == ["a"]
    await lines.save(SCOPE, CHAT, [item("c", 3)])
    assert [one.id for one in await all_of(lines)] == ["a", "c"]
    assert "saved_lines_unreadable" in caplog.text
    await lines.save(SCOPE, CHAT, [item("b", 2)])
    assert [one.id for one in await all_of(lines)] == ["a", "b", "c"]


@pytest.mark.parametrize("damaged", [b"{}", b"[]", b"7", b"\xff\xfe", b'{"id": 1}', b'{"removed": "a"}'])
async def test_a_damaged_line_hides_no_other(lines: JsonLinesStore, tmp_path: Path, damaged: bytes) -> None:
    """A damaged line hides no other."""
    await lines.save(SCOPE, CHAT, [item("a", 1)])
    with only_file(tmp_path).open("ab") as file:
        file.write(damaged + b"\n")
    await lines.save(SCOPE, CHAT, [item("b", 2)])
    assert [one.id for one in await all_of(lines)] == ["a", "b"]


async def test_a_file_does_not_grow_with_repeats_and_replacements(lines: JsonLinesStore, tmp_path: Path) -> None:
    """A file does not grow with repeats and replacements."""
    await lines.save(SCOPE, CHAT, [item("a", 1, 1)])
    size = only_file(tmp_path).stat().st_size
    await lines.save(SCOPE, CHAT, [item("a", 1, 1)])
    assert only_file(tmp_path).stat().st_size == size
    for version in range(2, 500):
        await lines.save(SCOPE, CHAT, [item("a", 1, version)])
    assert len(only_file(tmp_path).read_bytes().splitlines()) <= 203
    assert [one.version for one in await all_of(lines)] == [499]


async def test_the_memory_of_removals_is_a_day_long(
    kind: str, store: SecondaryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of removals is a day long."""
    clock: Callable[[], float] = lambda: 1_000_000_000.0  # noqa: E731 - one of two readings
    monkeypatch.setattr("time.time", clock)
    await store.delete(SCOPE, CHAT, ["old-id"], upto=5)
    monkeypatch.setattr("time.time", lambda: 1_000_000_000.0 + 24 * 3600 + 1)
    await store.delete(SCOPE, CHAT, ["new-id"], upto=5)
    await store.aclose()
    assert [id_ for id_ in ("old-id", "new-id") if id_ in on_disk(tmp_path)] == ["new-id"]


async def test_erase_removes_what_a_kill_left_of_a_file(tmp_path: Path) -> None:
    """A process is killed while it writes a file anew: the draft holds the text of the person."""
    store = JsonLinesStore(tmp_path)
    await store.save(SCOPE, CHAT, [item("a", subject="ann", data=b"secret")])
    (file,) = list(tmp_path.iterdir())  # noqa: ASYNC240 - a small folder
    file.with_suffix(".new").write_bytes(file.read_bytes())
    assert await store.erase("ann") == 1
    assert not any(b"secret" in one.read_bytes() for one in tmp_path.iterdir())  # noqa: ASYNC240 - as above
