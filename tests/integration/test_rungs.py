"""Each way to search vectors finds the same records, within its recall."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from orchestrator import ConfigError, InvalidInput, Memory, Orchestrator, Record
from orchestrator.memory import cached_search, exact_search, lsh_search
from orchestrator.store.keys import CODES, VECTORS
from orchestrator.sync import Orchestrator as SyncOrchestrator
from orchestrator.vectors import lsh, ranking
from orchestrator.vectors.cache import count_cache_loads
from orchestrator.vectors.encoding import decode_floats, encode_vector
from tests.helpers.counting import CommandCounter
from tests.helpers.local_team import local_settings
from tests.integration.test_similar import note, vector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    import redis

    from orchestrator.core.settings import Settings
    from tests.faultkit.servers import RedisServer

pytestmark = pytest.mark.every_server
EXACT = {"memory": {"vector_rung": "exact"}}
LSH = {"memory": {"vector_rung": "lsh"}}
_NUMBERS = itertools.count()
exact = pytest.mark.parametrize("settings", [EXACT], indirect=True)
buckets = pytest.mark.parametrize("settings", [LSH], indirect=True)


@pytest.fixture
async def memory(settings: Settings) -> AsyncIterator[Memory]:
    """The memory of an agent, changed without a lock."""
    async with Orchestrator(settings=settings) as client:
        yield client.memory("ed")


def clustered(seed: int, dims: int = 64, clusters: int = 30) -> list[float]:
    """A vector near one of some centres."""
    centre = random.Random(seed % clusters)
    chance = random.Random(seed + 1000)
    return [centre.gauss(0, 1) + chance.gauss(0, 0.6) for _ in range(dims)]


def ids(found: Iterable[Any]) -> list[str]:
    """Ids of found records."""
    return [hit.record.id for hit in found]


def naive(vectors: dict[str, list[float]], asked: list[float], k: int) -> list[tuple[str, float]]:
    """The nearest vectors by a comparison of all, those with one score by id."""
    floats = decode_floats(encode_vector("v", asked))
    scores = {
        id_: sum(a * b for a, b in zip(floats, other, strict=True))
        / sum(a * a for a in floats) ** 0.5
        / sum(b * b for b in other) ** 0.5
        for id_, other in ((id_, decode_floats(encode_vector("v", given))) for id_, given in vectors.items())
    }
    return sorted(((id_, round(score, 6)) for id_, score in scores.items()), key=lambda pair: (-pair[1], pair[0]))[:k]


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "update", "delete", "move", "expire", "supersede"]),
        st.integers(0, 12),
        st.integers(0, 30),
        st.booleans(),
    ),
    min_size=1,
    max_size=12,
)


@given(rounds=st.lists(CHANGES, min_size=1, max_size=4), dims=st.integers(1, 64), k=st.integers(1, 15))
@hypothesis_settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_exact_is_a_comparison_of_all(
    redis_server: RedisServer, prefix: str, rounds: list[Any], dims: int, k: int
) -> None:
    """After any changes through two processes, each of them finds what a comparison of all vectors finds."""
    settings = local_settings(redis_server.url, f"{prefix}{next(_NUMBERS)}", **EXACT)
    anyio.run(_compare, settings, rounds, dims, k)


async def _compare(settings: Settings, rounds: list[Any], dims: int, k: int) -> None:
    vectors: dict[str, list[float]] = {}
    async with Orchestrator(settings=settings) as one, Orchestrator(settings=settings) as two:
        memories = [one.memory("ed"), two.memory("ed")]
        await memories[0].store(Record(id="other", step=1, kind="note", content=1))
        for number, changes in enumerate(rounds):
            for verb, at, seed, second in changes:
                await _change(memories[second], vectors, (verb, at, seed), dims)
            asked = vector(number, dims)
            for memory in memories:
                found = await memory.similar(asked, k)
                expected = naive(vectors, asked, k)
                assert found.complete
                assert [round(hit.score, 5) for hit in found] == pytest.approx(
                    [score for _, score in expected], abs=2e-5
                )
                if len({score for _, score in expected}) == len(expected):
                    assert ids(found) == [id_ for id_, _ in expected]


async def _change(memory: Memory, vectors: dict[str, list[float]], change: tuple[str, int, int], dims: int) -> None:
    verb, at, seed = change
    id_, made = f"r{at}", [float(seed)] * dims if seed in {1, 2, 3} else vector(seed, dims)
    if verb in {"store", "expire", "move"}:
        ttl = 0.001 if verb == "expire" else None
        tier: Any = "im" if verb == "move" else "stm"
        await memory.store(Record(id=id_, step=seed, kind="note", content=seed, embedding=made, ttl=ttl), tier=tier)
        vectors[id_] = made
        if verb == "expire":
            await anyio.sleep(0.002)
            del vectors[id_]
    elif verb == "delete":
        await memory.delete(id_)
        vectors.pop(id_, None)
    elif id_ in vectors and verb == "update":
        await memory.update(id_, embedding=made)
        vectors[id_] = made
    elif id_ in vectors:
        await memory.supersede(id_, "other")
        del vectors[id_]


@pytest.mark.every_server(alone=True)
@exact
async def test_one_round_trip(settings: Settings, redis_client: redis.Redis) -> None:
    """A search whose vectors did not change reads them from the process, and asks the server once."""
    async with Orchestrator(settings=settings) as client:
        memory = client.memory("ed")
        await memory.store_many([note(seed) for seed in range(50)])
        await memory.similar(vector(1), 3)
        counter = CommandCounter(redis_client)
        assert ids(await memory.similar(vector(7), 3))[0] == "r7"
        calls = counter.calls()
        assert calls["exec"] == 1
        assert "hscan" not in calls


@pytest.mark.parametrize("settings", [EXACT, LSH], indirect=True)
async def test_ties(memory: Memory) -> None:
    """Of records whose vectors have one direction, those with the lowest ids come first."""
    asked = vector(1)
    names = [f"t{number:03}" for number in range(120)]
    random.Random(2).shuffle(names)
    records = [
        Record(id=name, step=1, kind="note", content=1, embedding=[value * 2 ** (place % 3) for value in asked])
        for place, name in enumerate(names)
    ]
    await memory.store_many(records)
    assert ids(await memory.similar(asked, 7)) == [f"t{number:03}" for number in range(7)]


@buckets
async def test_recall_of_buckets(memory: Memory) -> None:
    """Buckets find nine of the ten most similar records in a memory of clustered vectors."""
    vectors = {f"r{seed}": clustered(seed) for seed in range(1500)}
    await memory.store_many(
        [Record(id=id_, step=1, kind="note", content=1, embedding=made) for id_, made in vectors.items()]
    )
    hits = 0
    for seed in range(5000, 5020):
        found = await memory.similar(clustered(seed), 10)
        assert (found.rung, found.complete, len(found)) == ("lsh", True, 10)
        assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
        hits += len({id_ for id_, _ in naive(vectors, clustered(seed), 10)} & set(ids(found)))
    assert hits >= 180


@buckets
async def test_few_vectors_are_all_candidates(memory: Memory) -> None:
    """A search finds the nearest ones of a few vectors in any direction, which lie in buckets far apart."""
    vectors = {f"r{seed}": vector(seed, 8) for seed in range(400)}
    await memory.store_many(
        [Record(id=id_, step=1, kind="note", content=1, embedding=made) for id_, made in vectors.items()]
    )
    found = await memory.similar(vector(999, 8), 50)
    assert (found.rung, found.complete) == ("lsh", True)
    assert ids(found) == [id_ for id_, _ in naive(vectors, vector(999, 8), 50)]


@buckets
@pytest.mark.default_user
async def test_buckets_follow_the_records(memory: Memory) -> None:
    """Updates and deletes leave no entry in a bucket, and a record is found by its new vector."""
    await memory.store_many([note(seed) for seed in range(100)])
    await memory.update("r3", embedding=vector(777))
    assert ids(await memory.similar(vector(777), 1)) == ["r3"]
    await memory.store(note(4), tier="im")
    assert ids(await memory.similar(vector(4), 1)) == ["r4"]
    await memory.delete(*[f"r{seed}" for seed in range(100)])
    assert (await memory.similar(vector(4), 1)).hits == ()
    scope = memory.scope
    left = await scope.read("KEYS", scope.keys.key("lsh*"))
    assert left == []


@buckets
async def test_buckets_that_lack_vectors(memory: Memory) -> None:
    """All vectors are compared while some are in no bucket, as those that a program without buckets stored."""
    await memory.store_many([note(seed) for seed in range(30)])
    scope = memory.scope
    await scope.store.execute("HDEL", scope.keys.key(CODES), "r5")
    found = await memory.similar(vector(5), 3)
    assert (found.rung, ids(found)[0], found.complete) == ("exact", "r5", True)


@buckets
async def test_few_candidates(memory: Memory) -> None:
    """A search whose buckets hold too few records compares all of them."""
    await memory.store_many([Record(id=f"r{i}", step=1, kind="n", content=1, embedding=vector(i, 8)) for i in range(6)])
    found = await memory.similar([-value for value in vector(0, 8)], 6)
    assert len(found) == 6
    assert found.complete


@buckets
async def test_more_candidates_than_a_search_reads(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that reads some of the candidates says so, or compares all vectors."""
    monkeypatch.setattr(lsh_search, "MAX_CANDIDATES", 12)
    await memory.store_many([note(seed) for seed in range(200)])
    found = await memory.similar(vector(5), 3)
    assert (found.rung, found.complete, len(found)) == ("lsh", False, 3)


@pytest.mark.parametrize("settings", [EXACT, LSH], indirect=True)
async def test_another_space(memory: Memory) -> None:
    """A vector with another number of dimensions is refused."""
    await memory.store(note(1))
    with pytest.raises(InvalidInput, match=r"has 3 dimensions, and those of this memory have 16"):
        await memory.similar([1.0, 2.0, 3.0])


async def test_auto(memory: Memory, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without vector sets, few vectors are compared, and many are searched in buckets."""
    await memory.store_many(
        [Record(id=f"r{i}", step=1, kind="n", content=1, embedding=clustered(i)) for i in range(99)]
    )
    has_sets = redis_server.binary.version.startswith("8")
    found = await memory.similar(clustered(7), 3)
    assert (found.rung, ids(found)[0]) == ("vectorset" if has_sets else "exact", "r7")
    monkeypatch.setattr("orchestrator.memory.similar.KEPT_VECTORS", 50)
    await memory.update("r9", importance=1, embedding=clustered(9))
    found = await memory.similar(clustered(7), 3)
    assert (found.rung, ids(found)[0]) == ("vectorset" if has_sets else "lsh", "r7")


@pytest.mark.parametrize("settings", [{"memory": {"vector_rung": "exact", "vector_cache_bytes": 0}}], indirect=True)
async def test_without_a_cache(memory: Memory) -> None:
    """Vectors that do not fit are read for each search."""
    await memory.store_many([note(seed) for seed in range(700)])
    loads = count_cache_loads()
    found = await memory.similar(vector(600), 3)
    assert (found.rung, found.complete, ids(found)[0]) == ("exact", True, "r600")
    assert count_cache_loads() == loads


@pytest.mark.parametrize("settings", [EXACT, LSH], indirect=True)
async def test_without_numpy(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without numpy compares a few vectors itself, and names the extra when there are more."""
    for module in (ranking, lsh, exact_search, lsh_search, cached_search):
        monkeypatch.setattr(module, "HAS_NUMPY", False)
    await memory.store_many([note(seed) for seed in range(60)])
    found = await memory.similar(vector(7), 3)
    assert (found.rung, found.complete, ids(found)[0]) == ("exact", True, "r7")
    monkeypatch.setattr(exact_search, "MOST_WITHOUT_NUMPY", 50)
    with pytest.raises(ConfigError, match=r"pip install 'redis-orchestrator\[vectors\]'"):
        await memory.similar(vector(7), 3)


@exact
async def test_searches_amid_changes(settings: Settings) -> None:
    """A record that only changes its vector is in every answer that has room for all."""
    async with Orchestrator(settings=settings) as one, Orchestrator(settings=settings) as two:
        memory, other = one.memory("ed"), two.memory("ed")
        await memory.store_many([note(seed) for seed in range(10)])
        async with anyio.create_task_group() as group:

            async def change() -> None:
                for seed in range(60):
                    await other.update("r3", embedding=vector(1000 + seed))

            group.start_soon(change)
            for _ in range(30):
                assert len(await memory.similar(vector(3), 10)) == 10


@exact
def test_blocking_client(settings: Settings) -> None:
    """The blocking client keeps vectors, too."""
    with SyncOrchestrator(settings=settings) as client:
        memory = client.memory("ed")
        memory.store_many([note(seed) for seed in range(20)])
        loads = count_cache_loads()
        assert [memory.similar(vector(seed), 1)[0].record.id for seed in range(5)] == [f"r{seed}" for seed in range(5)]
        assert count_cache_loads() == loads + 1


@pytest.mark.parametrize("settings", [{}, EXACT, LSH], indirect=True)
async def test_lost_vectors(memory: Memory) -> None:
    """An answer of a memory whose vectors Redis has lost is not complete; that of an empty memory is."""
    assert (await memory.similar(vector(5), 3)).complete
    await memory.store_many([note(seed) for seed in range(5)])
    scope = memory.scope
    await scope.store.execute("DEL", scope.keys.key(VECTORS))
    found = await memory.similar(vector(5), 3)
    assert (found.hits, found.complete) == ((), False)
