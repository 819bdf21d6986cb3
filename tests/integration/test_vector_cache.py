"""Vectors that processes keep: what one process changes, the next search of another one sees."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import InvalidInput, Memory, Orchestrator, Record
from orchestrator.store.keys import VECTORS, VECTORS_LOG, VECTORS_META
from orchestrator.testing.waiting import wait_for
from orchestrator.vectors import cache as cache_module
from orchestrator.vectors.cache import IDLE_S, VectorCache, count_cache_loads, count_cached_bytes
from orchestrator.vectors.encoding import encode_vector
from tests.integration.test_similar import note, vector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.core.settings import Settings

pytestmark = pytest.mark.every_server


@pytest.fixture
async def memory(settings: Settings) -> AsyncIterator[Memory]:
    """The memory of an agent, changed without a lock."""
    async with Orchestrator(settings=settings) as client:
        yield client.memory("ed")


async def ids(cache: VectorCache, memory: Memory, seed: int, count: int = 3) -> list[str]:
    """The nearest records, as a process with this cache sees them."""
    found = await cache.nearest(memory.scope, encode_vector("v", vector(seed)), count, renew=True)
    assert found is not None
    return [id_.decode() for id_, _ in found.found]


async def test_changes_reach_another_process(memory: Memory) -> None:
    """Each change is read again alone; all vectors are loaded once."""
    await memory.store_many([note(seed) for seed in range(30)])
    cache, loads = VectorCache(), count_cache_loads()
    assert (await ids(cache, memory, 7))[0] == "r7"
    await memory.update("r9", embedding=vector(7))
    assert (await ids(cache, memory, 7))[:2] == ["r7", "r9"]
    await memory.delete("r7")
    assert (await ids(cache, memory, 7))[0] == "r9"
    await memory.store(note(99), tier="im")
    assert (await ids(cache, memory, 99))[0] == "r99"
    assert count_cache_loads() == loads + 1
    await memory.delete(*[f"r{seed}" for seed in range(100)])
    assert await ids(cache, memory, 7) == []
    assert cache.bytes == 0


@pytest.mark.parametrize(
    "loss",
    [
        [VECTORS_LOG],
        [VECTORS_META],
        [VECTORS_LOG, VECTORS_META],
        [VECTORS, VECTORS_LOG, VECTORS_META],
    ],
)
async def test_after_a_loss_of_keys(memory: Memory, loss: list[str]) -> None:
    """What the log does not say makes the process read all vectors again."""
    await memory.store_many([note(seed) for seed in range(5)])
    cache = VectorCache()
    assert (await ids(cache, memory, 1))[0] == "r1"
    await memory.update("r1", embedding=vector(50))
    await memory.scope.store.execute("DEL", *[memory.scope.keys.key(part) for part in loss])
    await memory.update("r2", embedding=vector(60))
    there = VECTORS not in loss
    assert (await ids(cache, memory, 50))[0] == ("r1" if there else "r2")
    assert (await ids(cache, memory, 60))[0] == "r2"
    assert len(await ids(cache, memory, 1, 10)) == (5 if there else 1)


@pytest.mark.default_user
async def test_changes_that_were_lost(memory: Memory) -> None:
    """Other changes with the same count, as after a failover that lost the newest ones, are seen."""
    keys = memory.scope.keys
    parts = [keys.key(part) for part in (VECTORS, VECTORS_META, VECTORS_LOG, "stm:hdr", "stm:rec")]
    await memory.store_many([note(seed) for seed in range(5)])
    saved = [await memory.scope.read("DUMP", key) for key in parts]
    cache = VectorCache()
    await memory.update("r1", embedding=vector(50))
    assert (await ids(cache, memory, 50))[0] == "r1"
    for key, value in zip(parts, saved, strict=True):
        await memory.scope.store.execute("RESTORE", key, 0, value, "REPLACE")
    await memory.update("r2", embedding=vector(60))
    assert (await ids(cache, memory, 60))[0] == "r2"
    assert (await ids(cache, memory, 1))[0] == "r1"


async def test_more_changes_than_the_log_has(memory: Memory) -> None:
    """A process that missed more changes than the log holds reads all vectors again."""
    await memory.store_many([note(seed) for seed in range(3)])
    cache, loads = VectorCache(), count_cache_loads()
    await ids(cache, memory, 1)
    for _ in range(11):
        await memory.store_many([note(seed) for seed in range(3, 103)])
    await memory.delete("r1")
    assert "r1" not in await ids(cache, memory, 1)
    assert count_cache_loads() == loads + 2


async def test_searches_at_once_load_once(memory: Memory) -> None:
    """Searches that wait for the vectors of one memory share them."""
    await memory.store_many([note(seed) for seed in range(1200)])
    cache, loads = VectorCache(), count_cache_loads()
    found: list[str] = []

    async def search(seed: int) -> None:
        found.append((await ids(cache, memory, seed))[0])

    async with anyio.create_task_group() as group:
        for seed in range(10):
            group.start_soon(search, seed)
    assert sorted(found) == [f"r{seed}" for seed in range(10)]
    assert count_cache_loads() == loads + 1


@pytest.mark.parametrize("settings", [{"memory": {"vector_cache_bytes": 30_000}}], indirect=True)
async def test_bounded_bytes(settings: Settings) -> None:
    """The memories that were not searched for the longest time are dropped; one that does not fit is not kept."""
    cache = VectorCache()
    async with Orchestrator(settings=settings) as client:
        small = [client.memory(name) for name in ("a", "b", "c")]
        for each in small:
            await each.store_many([note(seed) for seed in range(30)])
        for each in small:
            assert (await ids(cache, each, 4))[0] == "r4"
        assert len(cache) == 2
        assert 10_000 < cache.bytes <= 30_000
        assert count_cached_bytes() >= cache.bytes
        large = client.memory("large")
        await large.store_many([note(seed) for seed in range(150)])
        asked = encode_vector("v", vector(1))
        assert await cache.nearest(large.scope, asked, 3, renew=False) is None
        assert await cache.nearest(small[0].scope, asked, 3, renew=False, most=29) is None
        assert cache.bytes <= 30_000


async def test_idle_vectors_are_dropped(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of a memory that no search asked for in five minutes leave the process."""
    await memory.store(note(1))
    cache = VectorCache()
    await ids(cache, memory, 1)
    cache.drop_idle()
    assert len(cache) == 1
    later = time.monotonic() + IDLE_S + 1
    monkeypatch.setattr("time.monotonic", lambda: later)
    cache.drop_idle()
    assert (len(cache), cache.bytes) == (0, 0)


async def test_the_timer_drops_idle_vectors(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop drops them, although no search asks again."""
    monkeypatch.setattr(cache_module, "IDLE_S", 0.05)
    await memory.store(note(1))
    cache = VectorCache()
    await ids(cache, memory, 1)
    await wait_for(lambda: not len(cache), "the timer drops idle vectors")


async def test_changes_amid_a_load(memory: Memory) -> None:
    """What another program changes while the vectors are loaded is in the answer."""
    await memory.store_many([note(seed) for seed in range(1500)])
    cache = VectorCache()
    async with anyio.create_task_group() as group:

        async def change() -> None:
            for seed in range(40):
                await memory.update(f"r{seed}", embedding=vector(5000 + seed))

        group.start_soon(change)
        for _ in range(5):
            await ids(cache, memory, 1)
    for seed in (0, 20, 39):
        assert (await ids(cache, memory, 5000 + seed))[0] == f"r{seed}"
    assert len(await ids(cache, memory, 1, 2000)) == 1500


async def test_another_space(memory: Memory) -> None:
    """After all vectors were replaced by those of another space, the process reads them anew."""
    await memory.store_many([note(seed) for seed in range(3)])
    cache = VectorCache()
    await ids(cache, memory, 1)
    await memory.delete("r0", "r1", "r2")
    await memory.store(Record(id="x", step=1, kind="note", content=1, embedding=[1.0, 2.0]))
    found = await cache.nearest(memory.scope, encode_vector("v", [1.0, 2.0]), 3, renew=True)
    assert found is not None
    assert [id_ for id_, _ in found.found] == [b"x"]


async def test_another_process_changes_the_space(settings: Settings, memory: Memory) -> None:
    """A process that keeps vectors searches those of other dimensions that replace them."""
    rung = settings.memory.model_copy(update={"vector_rung": "exact"})
    async with Orchestrator(settings=settings.model_copy(update={"memory": rung})) as client:
        reader = client.memory("ed")
        await memory.store(note(1))
        assert (await reader.similar(vector(1), 1))[0].record.id == "r1"
        await memory.drop_vectors()
        await memory.store(Record(id="wide", step=1, kind="note", content=1, embedding=vector(2, 32)))
        assert (await reader.similar(vector(2, 32), 1))[0].record.id == "wide"
        with pytest.raises(InvalidInput, match="has 16 dimensions"):
            await reader.similar(vector(1))
