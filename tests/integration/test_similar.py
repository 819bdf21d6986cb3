"""`Memory.similar`: records by the likeness of their vectors, and vectors that never reach a caller."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from orchestrator import InvalidInput, Memory, MemoryQuery, Orchestrator, Record
from orchestrator.memory.exact_search import ExactSearch
from orchestrator.memory.listed_search import ListedSearch
from orchestrator.memory.vector_indexing import read_vectors
from orchestrator.store.keys import VECTOR_SET, VECTORS_PENDING
from orchestrator.vectors.encoding import encode_vector
from orchestrator.vectors.ranking import cosines
from orchestrator.vectors.vector_set import add_command, element_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import redis

    from orchestrator.core.settings import Settings


@pytest.fixture
async def orc(settings: Settings) -> AsyncIterator[Orchestrator]:
    """A client; no team runs."""
    async with Orchestrator(settings=settings) as client:
        yield client


@pytest.fixture
async def memory(orc: Orchestrator) -> Memory:
    """The memory of an agent, changed without a lock."""
    return orc.memory("ed")


def vector(seed: int, dims: int = 16) -> list[float]:
    """A vector that depends on the seed."""
    chance = random.Random(seed)
    return [chance.gauss(0, 1) for _ in range(dims)]


def note(seed: int, kind: str = "note", **columns: object) -> Record:
    """A record with a vector."""
    return Record(id=f"r{seed}", step=seed, kind=kind, content={"n": seed}, embedding=vector(seed), **columns)  # type: ignore[arg-type]


async def test_the_most_similar_first(memory: Memory) -> None:
    """A record is the most similar to its own vector, with score 1."""
    await memory.store_many([note(seed) for seed in range(50)])
    found = await memory.similar(vector(7), 3)
    assert found.complete
    assert found[0].record.id == "r7"
    assert found[0].score == pytest.approx(1, abs=1e-6)
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    assert len(found) == 3


async def test_a_record_that_changed(memory: Memory) -> None:
    """A record is found by its present vector, and not when its content has no vector."""
    await memory.store_many([note(seed) for seed in range(5)])
    await memory.update("r3", embedding=vector(77))
    assert (await memory.similar(vector(77), 1))[0].record.id == "r3"
    assert (await memory.similar(vector(3), 1, min_score=0.99)).hits == ()
    await memory.update("r3", content={"n": "new"})
    assert "r3" not in {hit.record.id for hit in await memory.similar(vector(77), 5)}
    await memory.update("r2", importance=0.7)
    assert (await memory.similar(vector(2), 1))[0].record.importance == 0.7


async def test_a_record_that_moved_or_went(memory: Memory) -> None:
    """A move between tiers keeps the vector; a delete removes it from the index."""
    await memory.store(note(1))
    await memory.store(note(1), tier="im")
    assert (await memory.similar(vector(1), 1))[0].record.tier == "im"
    await memory.delete("r1")
    assert (await memory.similar(vector(1), 1)).hits == ()
    scope = memory.scope
    assert await scope.read("EXISTS", scope.keys.key(VECTOR_SET), scope.keys.key(VECTORS_PENDING)) == 0


async def test_a_late_vector_is_not_found(memory: Memory) -> None:
    """A vector that is added behind its record's back, as by a writer that was paused, never reaches a caller."""
    await memory.store_many([note(seed) for seed in range(5)])
    scope = memory.scope
    (old,) = await read_vectors(scope, ["r1"])
    assert old is not None
    await memory.update("r1", embedding=vector(99))
    late = add_command(
        scope.keys.key(VECTOR_SET), old.floats, element_of(old.number, "r1"), kind="note", action="", step=1
    )
    await scope.store.execute(*late)
    gone = add_command(
        scope.keys.key(VECTOR_SET), encode_vector("v", vector(1)), element_of(5, "zz"), kind="", action="", step=1
    )
    await scope.store.execute(*gone)
    found = await memory.similar(vector(1), 5)
    assert [hit.record.id for hit in found].count("r1") == 1
    assert all(hit.score < 0.99 for hit in found)


async def test_conditions(memory: Memory) -> None:
    """Only records that meet all conditions are found."""
    await memory.store_many([note(seed, kind="odd" if seed % 2 else "even") for seed in range(40)])
    found = await memory.similar(vector(4), 5, where=MemoryQuery(kinds=("odd",), since=10))
    assert len(found) == 5
    assert all(hit.record.kind == "odd" and hit.record.step >= 10 for hit in found)


@pytest.mark.parametrize("name", ['say "hi"', "a' or .s > 0 or .k == 'a", "back\\slash", "100 % ü", "]", "~"])
async def test_conditions_on_names(memory: Memory, name: str) -> None:
    """Names are data in a filter of the index, whatever they contain."""
    count = 600
    await memory.store_many(
        [note(seed, kind=name if seed % 2 else "a", action=name if seed % 3 else None) for seed in range(count)]
    )
    fitting = {f"r{seed}" for seed in range(count) if seed % 2}
    found = await memory.similar(vector(5), 100, where=MemoryQuery(kinds=(name,), until=10_000))
    assert len(found) == 100
    assert {hit.record.id for hit in found} <= fitting
    assert found[0].record.id == "r5"
    assert found.rung == "exact"
    wide = await memory.similar(vector(5), 10, where=MemoryQuery(actions=(name,), since=-5, until=10_000))
    assert {hit.record.action for hit in wide} == {name}


async def test_a_wide_condition(memory: Memory) -> None:
    """The index compares conditions that many records meet; of others the headers decide."""
    await memory.store_many(
        [note(seed, kind="odd" if seed % 2 else "even", importance=seed % 4) for seed in range(1200)]
    )
    odd = await memory.similar(vector(4), 10, where=MemoryQuery(kinds=("odd",)))
    assert (odd.rung, odd.complete) == ("vectorset", True)
    assert {hit.record.kind for hit in odd} == {"odd"}
    important = await memory.similar(vector(3), 10, where=MemoryQuery(kinds=("odd",), min_importance=2))
    assert len(important) == 10
    assert {hit.record.importance for hit in important} == {3}
    assert important[0].record.id == "r3"


async def test_a_crowd_of_stale_vectors(memory: Memory) -> None:
    """Elements that a late writer has left near the question hide no record, and a search removes some that it sees."""
    await memory.store_many([note(seed) for seed in range(20)])
    scope, key = memory.scope, memory.scope.keys.key(VECTOR_SET)
    near = [value + 1e-4 for value in vector(7)]
    floats = encode_vector("v", near)
    stale = [add_command(key, floats, element_of(5, f"s{n}"), kind="note", action="", step=1) for n in range(2500)]
    for first in range(0, len(stale), 500):
        await scope.store.pipeline_aside(stale[first : first + 500])
    before = await scope.read("VCARD", key)
    found = await memory.similar(near, 3)
    assert found[0].record.id == "r7"
    assert (len(found), found.complete) == (3, True)
    assert await scope.read("VCARD", key) < before
    assert (await memory.similar(vector(7), 20, where=MemoryQuery(since=0))).complete


async def test_a_set_that_was_lost(memory: Memory) -> None:
    """Without the index all vectors are compared."""
    await memory.store_many([note(seed) for seed in range(20)])
    await memory.scope.store.execute("UNLINK", memory.scope.keys.key(VECTOR_SET))
    found = await memory.similar(vector(7), 3)
    assert (found[0].record.id, found.rung, found.complete) == ("r7", "exact", True)


async def test_a_vector_that_waits_for_its_index(memory: Memory) -> None:
    """A record whose writer died before it changed the index is found through its note."""
    await memory.store_many([note(seed) for seed in range(200)])
    scope = memory.scope
    (lost,) = await read_vectors(scope, ["r7"])
    assert lost is not None
    element = element_of(lost.number, "r7")
    await scope.store.execute("VREM", scope.keys.key(VECTOR_SET), element)
    await scope.store.execute("HSET", scope.keys.key(VECTORS_PENDING), element, "add")
    await scope.store.execute("EXPIRE", scope.keys.key(VECTORS_PENDING), 100)
    found = await memory.similar(vector(7), 3)
    assert (found[0].record.id, found.rung, found.complete) == ("r7", "vectorset", True)


async def test_large_contents(memory: Memory) -> None:
    """Contents are read of the records that are returned, and of two more."""
    await memory.store_many(
        [Record(id=f"r{n}", step=n, kind="note", content="x" * 20_000, embedding=vector(n)) for n in range(60)]
    )
    before = (await memory.scope.store.execute("INFO", "stats")).decode()
    found = await memory.similar(vector(3), 10)
    after = (await memory.scope.store.execute("INFO", "stats")).decode()
    assert len(found) == 10
    assert _sent(after) - _sent(before) < 14 * 20_000


def _sent(stats: str) -> int:
    return int(stats.split("total_net_output_bytes:")[1].split(maxsplit=1)[0])


@pytest.mark.parametrize("bad", [[], [0.0, 0.0], [float("nan")], ["x"], b"abc", [1e39], [1.0] * 5000])
async def test_what_is_no_vector(memory: Memory, bad: object) -> None:
    """A vector that cannot be compared is refused before anything is stored."""
    with pytest.raises(InvalidInput, match="embedding of record 'a'"):
        await memory.store(Record(id="a", step=1, kind="note", content=1, embedding=bad))  # type: ignore[arg-type]
    assert await memory.get("a") == [None]


async def test_another_space(memory: Memory) -> None:
    """A vector with another number of dimensions is refused, in a store and in a question."""
    await memory.store(note(1))
    with pytest.raises(InvalidInput, match="16 dimensions"):
        await memory.store(Record(id="a", step=1, kind="note", content=1, embedding=vector(1, 3)))
    with pytest.raises(InvalidInput, match="has 3 dimensions"):
        await memory.similar(vector(1, 3))
    assert await memory.get("a") == [None]


@pytest.mark.default_user
async def test_vectors_do_not_hold_up_other_commands(memory: Memory) -> None:
    """A vector set is changed over a connection of its own, because Redis reads nothing from one that VADD CAS uses."""

    async def names() -> list[str]:
        listed = (await memory.scope.read("CLIENT", "LIST")).decode()
        return [name for name in re.findall(r" name=(\S+)", listed) if memory.scope.keys.prefix in name]

    await memory.store(Record(step=1, kind="note", content=1))
    assert not [name for name in await names() if name.endswith(":in-turn")]
    await memory.store(note(1))
    assert [name for name in await names() if name.endswith(":in-turn")]


async def test_many_stores_at_once(settings: Settings) -> None:
    """Changes of the vector set wait for their turn before they are sent, so that the time-out counts for a few."""
    hasty = settings.model_copy(update={"redis": settings.redis.model_copy(update={"command_timeout_s": 0.5})})
    async with Orchestrator(settings=hasty) as orc:
        memory = orc.memory("ed")
        vectors = [vector(seed, 1024) for seed in range(50)]

        async def store(caller: int) -> None:
            await memory.store_many(
                [
                    Record(
                        id=f"{caller}-{number}",
                        step=1,
                        kind="note",
                        content=1,
                        embedding=vectors[number][caller:] + vectors[number][:caller],
                    )
                    for number in range(50)
                ]
            )

        async with asyncio.TaskGroup() as group:
            for caller in range(16):
                group.create_task(store(caller))
        read, keys = memory.scope.read, memory.scope.keys
        assert await read("HLEN", keys.key(VECTORS_PENDING)) == 0
        assert await read("VCARD", keys.key(VECTOR_SET)) == 800


@pytest.mark.parametrize("length", [1e-30, 1e-4, 1e20])
async def test_vectors_of_any_length(memory: Memory, length: float) -> None:
    """The length of a vector changes neither order nor scores, with conditions and without."""
    records = [replace(note(seed), embedding=[number * length for number in vector(seed)]) for seed in range(40)]
    await memory.store_many(records)
    asked, *others = [encode_vector("v", vector(seed)) for seed in (99, *range(40))]
    scores = cosines(asked, others)
    expected = sorted(range(40), key=lambda seed: -scores[seed])[:5]
    for where in (None, MemoryQuery(kinds=("note",))):
        found = await memory.similar([number * length for number in vector(99)], 5, where=where)
        assert [hit.record.id for hit in found] == [f"r{seed}" for seed in expected]
        assert found[0].score == pytest.approx(scores[expected[0]], abs=1e-6)


@pytest.mark.parametrize("wrong", [{0: 1.0, 1: 2.0}, {1.0, 2.0}])
async def test_numbers_without_order(memory: Memory, wrong: object) -> None:
    """The keys of a mapping and the members of a set are no vector."""
    with pytest.raises(InvalidInput, match="must be numbers or float32 bytes"):
        await memory.similar(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("searcher", [ListedSearch, ExactSearch])
async def test_a_record_that_is_stored_again_meanwhile(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, searcher: type[ListedSearch | ExactSearch]
) -> None:
    """A record with the same vector is found, also if it is stored between the comparison and the check."""
    kept_nowhere = settings.memory.model_copy(update={"vector_rung": "exact", "vector_cache_bytes": 0})
    async with Orchestrator(settings=settings.model_copy(update={"memory": kept_nowhere})) as client:
        memory = client.memory("ed")
        await memory.store_many([note(seed) for seed in range(5)])
        compare = searcher.nearest

        async def compare_and_store(*args: Any) -> Any:
            found = await compare(*args)
            await memory.store(note(3))
            return found

        monkeypatch.setattr(searcher, "nearest", compare_and_store)
        where = MemoryQuery(kinds=("note",)) if searcher is ListedSearch else None
        assert (await memory.similar(vector(3), 1, where=where))[0].record.id == "r3"
        assert (await memory.get("r3"))[0].version > 1  # type: ignore[union-attr]


@pytest.mark.parametrize("part", [VECTOR_SET, VECTORS_PENDING])
async def test_an_index_of_another_type(memory: Memory, redis_client: redis.Redis, part: str) -> None:
    """The stored vectors are compared when a key of the index is none."""
    await memory.store_many([note(seed) for seed in range(5)])
    key = memory.scope.keys.key(part)
    redis_client.delete(key)
    redis_client.set(key, "x", ex=60)
    found = await memory.similar(vector(3), 1)
    assert (found[0].record.id, found.rung, found.complete) == ("r3", "exact", True)


@pytest.mark.parametrize("bad", [1.01, -2, float("nan"), "high"])
async def test_what_is_no_score(memory: Memory, bad: Any) -> None:
    """A lowest score that no cosine reaches is refused."""
    with pytest.raises(InvalidInput, match="min_score must be"):
        await memory.similar(vector(1), min_score=bad)
