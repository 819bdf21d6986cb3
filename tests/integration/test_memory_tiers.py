"""`transition`, `offload`, `sweep` and `stats` of `orc.memory`, under crashes and beside other programs."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import InvalidInput, JsonLinesStore, Orchestrator, Record, RecordFilter, SqliteStore
from orchestrator.core.errors import MemoryFull
from orchestrator.memory.upkeep import tend_memory

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from orchestrator import Memory
    from orchestrator.secondary.model import StoredItem
    from tests.helpers.local_team import LocalTeam

FAST = {"memory": {"stm_age_s": 1.0, "keep_importance": 0.5}}


async def ids(memory: Memory, tier: str) -> set[str]:
    """The ids of a tier."""
    return {record.id for record in await memory.recent(1000) if record.tier == tier}


def note(number: int, **fields: Any) -> Record:
    """A record with an id of its own."""
    return Record(id=f"n{number}", step=number, kind="note", content={"number": number}, **fields)


async def saved(memory: Memory, sink: SqliteStore | JsonLinesStore) -> list[Any]:
    """What long-term storage holds."""
    return [(record.id, record.content) async for record in memory.offloaded(sink)]


@pytest.mark.parametrize("settings", [{"memory": {"max_stm_records": 150, "max_im_records": 200}}], indirect=True)
async def test_transition_by_size(team: LocalTeam) -> None:
    """A lowered cap is reached, and a full intermediate tier is told."""
    memory = team.orc.memory("ed")
    await memory.store_many([note(number) for number in range(340)])
    stats = await memory.stats()
    assert (stats.stm.records, stats.im.records, stats.records) == (150, 190, 340)
    assert (stats.stm.oldest_step, stats.stm.newest_step, stats.im.oldest_step) == (190, 339, 0)
    with pytest.raises(MemoryFull):
        await memory.store_many([note(number) for number in range(340, 360)])


@pytest.mark.parametrize("settings", [{"memory": {"stm_age_s": 1.0, "keep_importance": 0.5}}], indirect=True)
async def test_transition_by_age_and_importance(team: LocalTeam) -> None:
    """Important records of the age move, behind any number of unimportant ones; a second call moves none."""
    memory = team.orc.memory("ed")
    await memory.store_many([note(number, importance=float(number >= 250)) for number in range(260)])
    await anyio.sleep(1.05)
    await memory.store(note(300, importance=1.0))
    report = await memory.transition()
    assert (report.moved, report.stayed, report.complete) == (10, 250, True)
    assert await ids(memory, "im") == {f"n{number}" for number in range(250, 260)}
    report = await memory.transition()
    assert (report.moved, report.complete) == (0, True)


async def test_offload(team: LocalTeam, tmp_path: Path) -> None:
    """Records reach the storage once, whole; a record that comes back and is offloaded again replaces the old one."""
    memory = team.orc.memory("ed")
    full = Record(
        id="é {1}", step=-3, kind="k ä", content=[None, {"a": 1.5}], importance=0.25, action="go", position=(1.5, -2.0),
        subject="Ann", simulation="run 1", agent_type="wolf", meta={"m": True},
    )  # fmt: skip
    async with SqliteStore(tmp_path / "x.sqlite") as sink:
        await memory.store(full, tier="im")
        await memory.store_many([note(number) for number in range(230)], tier="im")
        await memory.store(note(500))
        assert await memory.offload(sink, limit=1000) == 231
        assert await memory.offload(sink) == 0
        first, *_ = [record async for record in memory.offloaded(sink)]
        assert first == full
        assert len(await saved(memory, sink)) == 231
        assert (await saved(memory, sink))[1:3] == [("n0", {"number": 0}), ("n1", {"number": 1})]
        assert [record.id async for record in memory.offloaded(sink, since=229)] == ["n229"]
        stats = await memory.stats()
        assert (stats.stm.records, stats.im.records, stats.im.bytes, stats.outbox, stats.pending) == (1, 0, 0, 0, 0)
        assert await team.orc.simulation("run 1").states() == []
        assert await memory.offload(sink, older_than=0) == 0
        await memory.store(Record(id="n7", step=7, kind="note", content="new"), tier="im")
        assert await memory.offload(sink, older_than=3600) == 0
        assert await memory.offload(sink) == 1
        assert dict(await saved(memory, sink))["n7"] == "new"


class Refusing:
    """A storage that fails after some saves."""

    def __init__(self, inner: JsonLinesStore, saves: int) -> None:
        self.inner, self.saves = inner, saves

    async def save(self, scope: str, resource: str, items: Sequence[StoredItem]) -> None:
        """Save, or fail."""
        self.saves -= 1
        if self.saves < 0:
            raise OSError("disk full")
        await self.inner.save(scope, resource, items)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


async def test_failing_storage(team: LocalTeam, tmp_path: Path) -> None:
    """What a storage does not take waits in the outbox, and goes with the next call before anything else."""
    memory, sink = team.orc.memory("ed"), JsonLinesStore(tmp_path)
    await memory.store_many([note(number) for number in range(150)], tier="im")
    with pytest.raises(OSError, match="disk full"):
        await memory.offload(Refusing(sink, 1), limit=150)
    stats = await memory.stats()
    assert (stats.outbox, stats.im.records, len(await saved(memory, sink))) == (50, 0, 100)
    assert await memory.offload(sink, limit=10) == 10
    assert await memory.offload(sink, limit=100) == 40
    assert sorted(await saved(memory, sink)) == sorted((f"n{number}", {"number": number}) for number in range(150))


async def test_superseded_records_stay_superseded(team: LocalTeam, tmp_path: Path) -> None:
    """A superseded record does not come back from long-term storage to recalls; the storage has it."""
    memory, sink = team.orc.memory("ed"), JsonLinesStore(tmp_path)
    await memory.store_many([note(1), note(2)], tier="im")
    await memory.supersede("n1", "n2")
    assert await memory.offload(sink) == 2
    assert [item.id async for item in sink.load(memory.scope.keys.root, "memory")] == ["n1", "n2"]
    for record in [record async for record in memory.offloaded(sink)]:
        await memory.store(record)
    assert [record.id for record in await memory.recent()] == ["n2"]


class Meanwhile:
    """A storage that runs a call just before it saves."""

    def __init__(self, inner: SqliteStore, call: Callable[[], Awaitable[Any]]) -> None:
        self.inner, self.call = inner, call

    async def save(self, scope: str, resource: str, items: Sequence[StoredItem]) -> None:
        """Call, then save."""
        await self.call()
        await self.inner.save(scope, resource, items)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("verb", ["erase", "delete", "forget"])
async def test_deleted_while_it_is_saved(team: LocalTeam, tmp_path: Path, verb: str) -> None:
    """A record that is erased, deleted or forgotten beside its save leaves long-term storage again; others stay."""
    memory = team.orc.memory("ed")
    await memory.store(note(1, subject="eve"), tier="im")
    await memory.store(note(2, subject="bob"), tier="im")
    async with SqliteStore(tmp_path / "x.sqlite") as sink:
        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "erase": lambda: team.orc.subjects.erase("eve", asked_by="ticket", stores=[sink]),
            "delete": lambda: memory.delete("n1"),
            "forget": lambda: memory.forget(RecordFilter(subject="eve")),
        }
        assert await memory.offload(Meanwhile(sink, calls[verb])) == 1
        assert [id_ for id_, _ in await saved(memory, sink)] == ["n2"]


async def test_forget_what_waits_for_a_storage(team: LocalTeam, tmp_path: Path) -> None:
    """`forget` and `delete` reach records that wait in the outbox."""
    memory, sink = team.orc.memory("ed"), JsonLinesStore(tmp_path)
    await memory.store_many([note(number, subject="eve" if number % 2 else None) for number in range(6)], tier="im")
    with pytest.raises(OSError, match="disk full"):
        await memory.offload(Refusing(sink, 0))
    assert await memory.delete("n0", "n0", "none") == 1
    assert (await memory.preview_forget(RecordFilter(subject="eve", tiers=("stm",)))).count == 0
    assert (await memory.forget(RecordFilter(ids=("n1", "n2"), subject="eve"))).count == 1
    assert (await memory.forget(RecordFilter(subject="eve"))).count == 2
    assert (await memory.stats()).outbox == 2
    assert await memory.offload(sink) == 2
    assert sorted(id_ for id_, _ in await saved(memory, sink)) == ["n2", "n4"]


async def test_offload_behind_young_records(team: LocalTeam, tmp_path: Path) -> None:
    """Old records are found behind younger ones that end before them."""
    memory = team.orc.memory("ed")
    await memory.store_many([note(number) for number in range(20)], tier="im")
    await anyio.sleep(0.5)
    await memory.store_many([note(number, ttl=3600) for number in range(100, 150)], tier="im")
    async with SqliteStore(tmp_path / "x.sqlite") as sink:
        assert await memory.offload(sink, older_than=0.5, limit=10) == 10
        assert await memory.offload(sink, older_than=0.5, limit=100) == 10


CRASH = """
import anyio, os, signal, sys
from orchestrator import Orchestrator, Record, JsonLinesStore
import orchestrator.memory.writer as writer

url, prefix, folder, where = sys.argv[1:]


def die(*_args, **_options):
    os.kill(os.getpid(), signal.SIGKILL)


class Dying(JsonLinesStore):
    async def save(self, scope, resource, items):
        if where == "before save":
            die()
        await super().save(scope, resource, items)
        die()


async def main():
    async with Orchestrator(url, prefix=prefix) as orc:
        memory = orc.memory("ed")
        if where == "before listing":
            writer.follow = die
            await memory.store(Record(id="s", step=1, kind="state", content=1, simulation="run"))
        await memory.offload(Dying(folder))


anyio.run(main)
"""


def crash(team: LocalTeam, folder: Path, where: str) -> None:
    """Run a program that kills itself at a place."""
    url = team.settings.redis.url.get_secret_value()  # type: ignore[union-attr]
    command = [sys.executable, "-c", textwrap.dedent(CRASH), url, team.settings.prefix, str(folder), where]
    assert subprocess.run(command, timeout=60, check=False).returncode == -9


@pytest.mark.parametrize("where", ["before save", "after save"])
async def test_killed_while_it_offloads(team: LocalTeam, tmp_path: Path, where: str) -> None:
    """A program that is killed between the steps of an offload loses no record, and none is stored twice."""
    memory = team.orc.memory("ed")
    await memory.store_many([note(number) for number in range(30)], tier="im")
    await anyio.to_thread.run_sync(crash, team, tmp_path, where)
    assert (await memory.stats()).outbox == 30
    sink = JsonLinesStore(tmp_path)
    assert await memory.offload(sink) == 30
    assert sorted(await saved(memory, sink)) == sorted((f"n{number}", {"number": number}) for number in range(30))
    assert ((await memory.stats()).outbox, (await memory.stats()).im.records) == (0, 0)


async def test_killed_before_the_simulation_follows(team: LocalTeam, tmp_path: Path) -> None:
    """A program that dies behind its store leaves a note; a sweep, and the upkeep, make the change that it names."""
    memory, run = team.orc.memory("ed"), team.orc.simulation("run")
    for tend in (False, True):
        await anyio.to_thread.run_sync(crash, team, tmp_path, "before listing")
        assert ((await memory.stats()).pending, await run.states()) == (1, [])
        if tend:
            await tend_memory(team.services.store, team.settings, memory.scope.keys)
        else:
            assert (await memory.sweep()).followed == 1
        assert ((await memory.stats()).pending, [ref.id for ref in await run.states()]) == (0, ["s"])
        await memory.delete("s")
        assert await run.states() == []


async def test_sweep(team: LocalTeam) -> None:
    """A sweep in small parts reaches the end, removes what has expired or has no record, and spares the rest."""
    memory = team.orc.memory("ed")
    await memory.store_many([note(number, ttl=0.05 if number % 2 else 3600) for number in range(80)])
    key = memory.scope.keys.key
    await team.services.store.execute("ZADD", key("stm:time"), 1, "orphan")
    await anyio.sleep(0.06)
    cursor, total, parts = 0, [0, 0], 0
    while True:
        report = await memory.sweep(cursor=cursor, budget=25)
        total = [total[0] + report.expired, total[1] + report.orphans]
        parts, cursor = parts + 1, report.cursor
        assert report.checked <= 60
        if not cursor:
            break
    assert (total, parts > 3) == ([40, 1], True)
    assert await ids(memory, "stm") == {f"n{number}" for number in range(0, 80, 2)}
    for number in (-1, 13, 0.5):
        with pytest.raises(InvalidInput, match="cursor"):
            await memory.sweep(cursor=number)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [FAST], indirect=True)
async def test_upkeep(team: LocalTeam) -> None:
    """The upkeep of an idle memory removes what has expired and moves what is due; a held memory is left alone."""
    memory = team.orc.memory("ed")
    await memory.store_many([note(number, importance=1.0, ttl=0.5 if number % 2 else None) for number in range(100)])
    await anyio.sleep(1.05)
    key = memory.scope.keys.key("exec")
    await team.services.store.execute("SET", key, "1:t:1:0", "PX", 60_000)
    assert await tend_memory(team.services.store, team.settings, memory.scope.keys) == 0
    await team.services.store.execute("DEL", key)
    assert await tend_memory(team.services.store, team.settings, memory.scope.keys) == 100
    stats = await memory.stats()
    assert (stats.stm.records, stats.im.records) == (0, 50)


async def test_concurrent_programs(team: LocalTeam, tmp_path: Path) -> None:
    """Stores, moves, sweeps, deletes and offloads at once: no moment shows a record without entries, or the reverse."""
    prefix, url = team.settings.prefix, team.settings.redis.url
    assert url is not None
    looks = 0
    async with (
        Orchestrator(url.get_secret_value(), prefix=prefix) as second,
        SqliteStore(tmp_path / "x.sqlite") as sink,
        anyio.create_task_group() as group,
    ):
        memory, other = team.orc.memory("ed"), second.memory("ed")
        done = anyio.Event()

        async def write() -> None:
            for number in range(60):
                await memory.store(note(number % 17, importance=number / 60, position=(number, 1), subject="u"))
                await other.store(note(number % 13, action="go"), tier="im" if number % 3 else "stm")
            done.set()

        async def move() -> None:
            while not done.is_set():
                await other.transition()
                await other.sweep(budget=1000)
                await memory.offload(sink, limit=3)
                await other.delete("n1", "n2")

        async def look() -> None:
            nonlocal looks
            while not done.is_set():
                assert await contradictions(memory) == []
                for record in await other.of_kind("note"):
                    assert record.content["number"] == record.step
                looks += 1

        for task in (write, move, look):
            group.start_soon(task)
    assert looks > 10
    assert await contradictions(team.orc.memory("ed")) == []


async def contradictions(memory: Memory) -> list[str]:
    """Differences between the records of one moment and the entries of their indices."""
    keys, parts = memory.scope.keys, ("time", "imp", "exp", "kind:note")
    commands: list[Any] = [("MULTI",)]
    for tier in ("stm", "im"):
        commands += [("HKEYS", keys.key(f"{tier}:{part}")) for part in ("hdr", "rec")]
        commands += [("ZRANGE", keys.key(f"{tier}:{part}"), 0, -1) for part in parts]
    replies = (await memory.scope.read_many([*commands, ("EXEC",)]))[-1]
    return [
        f"{tier} {part}"
        for number, tier in enumerate(("stm", "im"))
        for part, members in zip(("rec", *parts), replies[6 * number + 1 : 6 * number + 6], strict=True)
        if set(members) != set(replies[6 * number])
    ]
