"""With `memory.vector_delete` = `mark` vectors are hidden, and sets with many hidden ones are built anew."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import Memory, Orchestrator, Record
from orchestrator.memory import vector_rebuild
from orchestrator.memory.vector_indexing import index_vectors, read_vectors
from orchestrator.memory.vector_rebuild import rebuild, tend_vectors
from orchestrator.store.keys import VECTOR_SET, VECTORS, VECTORS_LOG
from orchestrator.vectors.vector_set import element_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.core.settings import Settings

pytestmark = pytest.mark.parametrize("settings", [{"memory__vector_delete": "mark"}], indirect=True, ids=["mark"])


@pytest.fixture
async def memory(settings: Settings) -> AsyncIterator[Memory]:
    """The memory of an agent."""
    async with Orchestrator(settings=settings) as orc:
        yield orc.memory("ed")


def vector(seed: int) -> list[float]:
    """A vector that depends on the seed."""
    chance = random.Random(seed)
    return [chance.gauss(0, 1) for _ in range(8)]


def note(seed: int, **columns: Any) -> Record:
    """A record with a vector."""
    return Record(id=f"r{seed}", step=1, kind="note", content=seed, embedding=vector(seed), **columns)


async def sizes(memory: Memory) -> tuple[int, int]:
    """The number of stored vectors, and of elements."""
    key = memory.scope.keys.key
    stored, size = await memory.scope.read_many([("HLEN", key(VECTORS)), ("VCARD", key(VECTOR_SET))])
    return stored, size


async def removals(memory: Memory) -> int:
    """How often the server has run VREM."""
    stats = (await memory.scope.store.execute("INFO", "commandstats")).decode().lower()
    return int(stats.split("cmdstat_vrem:calls=")[1].split(",")[0]) if "cmdstat_vrem:" in stats else 0


async def test_hidden_vectors_are_not_found(memory: Memory) -> None:
    """Vectors of deleted and changed records stay in the set, hide none, and leave when the set is built anew."""
    before = await removals(memory)
    await memory.store_many([note(seed) for seed in range(60)])
    await memory.delete(*[f"r{seed}" for seed in range(30)])
    await memory.update("r30", embedding=vector(99))
    assert await sizes(memory) == (30, 61)
    found = await memory.similar(vector(3), 10)
    assert (len(found), found.rung, found.complete) == (10, "vectorset", True)
    assert (await memory.similar(vector(99), 1))[0].record.id == "r30"
    assert await tend_vectors(memory.scope) == 30
    assert await sizes(memory) == (30, 30)
    again = await memory.similar(vector(3), 10)
    assert [hit.record.id for hit in again] == [hit.record.id for hit in found]
    assert await tend_vectors(memory.scope) == 0
    assert await memory.scope.read("PTTL", memory.scope.keys.key(VECTOR_SET)) > 0
    assert await removals(memory) == before


async def test_the_last_vector(memory: Memory) -> None:
    """A memory without vectors has no set."""
    await memory.store_many([note(seed) for seed in range(3)])
    await memory.delete("r0", "r1", "r2")
    await rebuild(memory.scope)
    assert await memory.scope.read("EXISTS", memory.scope.keys.key(VECTOR_SET)) == 0


@pytest.mark.parametrize("logged", [1024, 3])
async def test_changes_while_a_set_is_built(memory: Memory, monkeypatch: pytest.MonkeyPatch, logged: int) -> None:
    """What other programs store, change and delete meanwhile is in the new set, and no more."""
    monkeypatch.setattr(vector_rebuild, "_AT_ONCE", 10)
    await memory.store_many([note(seed) for seed in range(150)])
    done = anyio.Event()

    async def change() -> None:
        for seed in range(150, 200):
            await memory.store(note(seed))
            await memory.delete(f"r{seed - 100}")
            await memory.update(f"r{seed - 150}", embedding=vector(seed + 1000))
            await memory.scope.store.execute("LTRIM", memory.scope.keys.key(VECTORS_LOG), -logged, -1)
            if done.is_set():
                break

    async with anyio.create_task_group() as group:
        group.start_soon(change)
        for _ in range(3):
            await rebuild(memory.scope)
        done.set()
    live = [each for each in await memory.recent(1000) if each.has_vector]
    stored, size = await sizes(memory)
    assert stored == len(live)
    assert size >= stored
    vectors = await read_vectors(memory.scope, [each.id for each in live])
    key = memory.scope.keys.key(VECTOR_SET)
    for each in vectors:
        assert each is not None
        assert await memory.scope.read("VGETATTR", key, element_of(each.number, each.id)), each.id
    await rebuild(memory.scope)
    assert await sizes(memory) == (stored, stored)


async def test_many_writers_while_a_set_is_built(settings: Settings, memory: Memory) -> None:
    """No change is lost, however many programs change vectors between two reads of a build."""
    key = memory.scope.keys.key(VECTOR_SET)

    async def change(writer: Memory, first: int, done: anyio.Event) -> None:
        seed = first
        while not done.is_set():
            seed += 4
            await writer.store(Record(id=f"r{seed % 40}", step=1, kind="note", content=1, embedding=vector(seed)))

    async def lost_after_a_build(other: Memory) -> list[str]:
        done = anyio.Event()
        async with anyio.create_task_group() as group:
            for number in range(4):
                group.start_soon(change, (memory, other)[number % 2], number, done)
            for _ in range(3):
                await rebuild(memory.scope)
            done.set()
        await index_vectors(memory.scope, grace_us=0)
        live = await read_vectors(memory.scope, [each.id for each in await memory.recent(100)])
        elements = [element_of(each.number, each.id) for each in live if each]
        attributes = await memory.scope.read_many([("VGETATTR", key, element) for element in elements])
        return [element for element, found in zip(elements, attributes, strict=True) if not found]

    async with Orchestrator(settings=settings) as orc:
        assert [await lost_after_a_build(orc.memory("ed")) for _ in range(5)] == [[]] * 5


async def test_an_erased_person(settings: Settings) -> None:
    """Erasure removes the vector from the set, not only its attributes."""
    async with Orchestrator(settings=settings) as orc:
        memory = orc.memory("ed")
        await memory.store_many([note(seed, subject="ann" if seed == 3 else None) for seed in range(6)])
        await orc.subjects.erase("ann", asked_by="ticket 7")
        assert await sizes(memory) == (5, 5)
        assert (await memory.similar(vector(3), 1, min_score=0.99)).hits == ()
