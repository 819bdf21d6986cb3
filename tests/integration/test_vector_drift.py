"""Records and their vectors: no crash, order of arrival or lost key leaves one that does not belong to the other."""

from __future__ import annotations

import random
import threading
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import NotFound, Orchestrator, Record
from orchestrator.memory import scripts as memory_scripts
from orchestrator.memory import vector_indexing
from orchestrator.memory.vector_indexing import index_vectors
from orchestrator.repair.scope_scan import ScopeScan
from orchestrator.repair.upkeep import UPKEEP
from orchestrator.store.keys import VECTOR_SET, VECTORS_PENDING
from orchestrator.store.script_files import all_scripts
from orchestrator.vectors.encoding import encode_vector
from orchestrator.vectors.ranking import cosines
from tests.faultkit.commands import script
from tests.faultkit.processes import ActorProcess
from tests.faultkit.proxy import FaultProxy, ThreadedProxy
from tests.helpers.local_team import run_local_team
from tests.helpers.vectors import add_late, differences, elements, named_vectors, note, run, stored_vectors, vector
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import redis

    from orchestrator import Memory
    from orchestrator.core.settings import Settings
    from orchestrator.repair.findings import RepairFinding
    from tests.faultkit.commands import Command, Match
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam


@pytest.fixture
async def team(settings: Settings) -> AsyncIterator[LocalTeam]:
    """A client, and no supervisor that repairs meanwhile."""
    async with run_local_team(settings, supervised=False) as running:
        yield running


@pytest.fixture
async def orc(settings: Settings) -> AsyncIterator[Orchestrator]:
    """A client."""
    async with Orchestrator(settings=settings) as client:
        yield client


@pytest.fixture
async def memory(team: LocalTeam) -> Memory:
    """A memory with ten records that have vectors, and one without."""
    found = team.orc.memory("ed")
    await found.store_many([note(seed) for seed in range(5)])
    await found.store_many([note(seed) for seed in range(5, 10)], tier="im")
    await found.store(Record(id="plain", step=1, kind="note", content=1))
    return found


async def scan(team: LocalTeam, *, repair: bool = True, deep: bool = True) -> list[RepairFinding]:
    """Scan once, without rests."""
    steps = ScopeScan(team.services, repair=repair, deep=deep, upkeep=repair).steps()
    return [finding async for found in steps for finding in found]


def codes(found: list[RepairFinding]) -> set[tuple[str, bool]]:
    """Return what was found, and whether it was repaired."""
    return {(finding.code, finding.repaired) for finding in found}


SETTLE = script(all_scripts()["memory/settle_vectors"].sha)
_STORES = """
import anyio
from orchestrator import Orchestrator, Record

async def main():
    async with Orchestrator() as orc:
        await orc.memory("ed").store(Record(id="new", step=1, kind="note", content={"n": 77}, embedding=%r))

anyio.run(main)
"""


def client_of(settings: Settings, proxy: FaultProxy) -> Orchestrator:
    """A client behind a proxy."""
    redis = settings.redis.model_copy(update={"url": type(settings.redis.url)(proxy.url)})  # type: ignore[misc]
    return Orchestrator(settings=settings.model_copy(update={"redis": redis}))


# ------------------------------------------------------------------------------------------------------------- crashes


@pytest.mark.parametrize(("at", "indexed"), [("VADD", False), (SETTLE, True)], ids=["before VADD", "before the note"])
@pytest.mark.parametrize("follower", ["change", "upkeep"])
async def test_a_killed_writer(  # noqa: PLR0917
    team: LocalTeam, redis_server: RedisServer, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch,
    at: Match, follower: str, *, indexed: bool,
) -> None:  # fmt: skip
    """A process that dies between its script and the vector set leaves a note, which another one follows in time."""
    memory = team.orc.memory("ed")
    scope = memory.scope
    await memory.store(note(1))
    env = {"ORC_REDIS__URL": "", "ORC_PREFIX": team.settings.prefix}
    with ThreadedProxy(redis_server.url) as proxy:
        env["ORC_REDIS__URL"] = proxy.url
        with ActorProcess.python("-c", _STORES % vector(77), name="writer", env=env) as writer:
            proxy.fail_command(at, how="swallow")
            proxy.watch(at, lambda _: writer.kill())
            assert await anyio.to_thread.run_sync(writer.wait_exit, 30) == -9, writer.output
    (record,) = await memory.get("new")
    assert record is not None
    assert record.has_vector
    assert list(redis_client.hvals(scope.keys.key(VECTORS_PENDING))) == [b"add"]
    assert any(name.endswith(":new") for name in elements(redis_client, scope.keys)) == indexed

    async def follow() -> None:
        if follower == "change":
            await memory.store(note(2))
        else:
            (step,) = [step for step in UPKEEP if step.kind == VECTORS_PENDING]
            await step.run(team.services, scope.keys)

    await follow()
    assert redis_client.hlen(scope.keys.key(VECTORS_PENDING)) == 1, "another client has followed within the grace"
    monkeypatch.setattr(vector_indexing, "GRACE_US", 0)
    await follow()
    assert differences(redis_client, scope.keys) == []
    assert (await memory.similar(vector(77), 1))[0].record.id == "new"


@pytest.mark.parametrize("how", ["cut", "reset", "swallow"])
@pytest.mark.parametrize("at", ["VADD", SETTLE], ids=["VADD", "note"])
async def test_a_cut_connection(
    settings: Settings, redis_server: RedisServer, redis_client: redis.Redis, how: Any, at: Match
) -> None:
    """A store whose vector could not be added succeeds; what is left is made by the next change that finds it due."""
    timeout = settings.redis.model_copy(update={"command_timeout_s": 0.3})
    async with (
        FaultProxy(redis_server.url) as proxy,
        client_of(settings.model_copy(update={"redis": timeout}), proxy) as orc,
    ):
        memory = orc.memory("ed")
        keys = memory.scope.keys
        await memory.store(note(1))
        fault = proxy.fail_command(at, nth="every", how=how)
        await memory.store(note(2))
        assert fault.fired
        proxy.heal()
        proxy.cut()
        assert set(redis_client.hvals(keys.key(VECTORS_PENDING))) == {b"add"}
        assert await index_vectors(memory.scope, grace_us=0) == 1
        assert differences(redis_client, keys) == []


async def test_a_full_server(
    settings: Settings, redis_server: RedisServer, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """A record is stored although the server refuses its vector for want of memory; later it is added."""
    async with FaultProxy(redis_server.url) as proxy, client_of(settings, proxy) as orc:
        memory = orc.memory("ed")
        keys = memory.scope.keys
        await memory.store(note(1))

        def fill(_: Command) -> None:
            redis_client.config_set("maxmemory", 1_000_000)

        full = proxy.watch("VADD", fill)
        try:
            change = await memory.store(note(2))
        finally:
            full.stop()
            redis_client.config_set("maxmemory", 0)
        assert (full.fired, change.version) == (1, 1)
        assert redis_client.hvals(keys.key(VECTORS_PENDING)) == [b"add"]
        assert "vector_index_behind" in caplog.text
        await index_vectors(memory.scope, grace_us=0)
        assert differences(redis_client, keys) == []


# -------------------------------------------------------------------------------------------------- concurrent changes


@pytest.mark.parametrize("checked", [True, False], ids=["as it is", "a note removed without a look"])
async def test_a_vector_that_arrives_behind_its_deletion(
    settings: Settings, redis_server: RedisServer, redis_client: redis.Redis, monkeypatch: pytest.MonkeyPatch,
    orc: Orchestrator, *, checked: bool,
) -> None:  # fmt: skip
    """A VADD that arrives behind the deletion of its record leaves nothing. Twin: without the look it does."""
    other = orc.memory("ed")
    keys = other.scope.keys
    await other.store(note(1))

    async def delete(_: Command) -> None:
        await anyio.to_thread.run_sync(deleted.wait)

    deleted = threading.Event()
    if not checked:
        settle = memory_scripts.settle_vectors
        monkeypatch.setattr(
            memory_scripts, "settle_vectors", lambda keys, rows: settle(keys, rows=[(row, "rem") for row, _ in rows])
        )
    async with FaultProxy(redis_server.url) as proxy, client_of(settings, proxy) as late:
        held = proxy.watch("VADD", delete)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late.memory("ed").store, note(2))
            await wait_for(lambda: held.seen, "the VADD")
            assert await other.delete("r2") == 1
            assert redis_client.hlen(keys.key(VECTORS_PENDING)) == 0
            deleted.set()
    stale = [name for name in elements(redis_client, keys) if name.endswith(":r2")]
    assert bool(stale) != checked
    if checked:
        assert differences(redis_client, keys) == []


async def test_a_vector_that_redis_drops(
    settings: Settings, redis_server: RedisServer, redis_client: redis.Redis, orc: Orchestrator
) -> None:
    """A vector that Redis said it had added, and dropped with the last element of the set, is added again."""
    keys = orc.memory("ed").scope.keys

    def drop(_: Command) -> None:
        redis_client.delete(keys.key(VECTOR_SET))
        lost.stop()

    async with FaultProxy(redis_server.url) as proxy, client_of(settings, proxy) as client:
        lost = proxy.watch(SETTLE, drop)
        await client.memory("ed").store(note(1))
        assert lost.fired == 1
    assert differences(redis_client, keys) == []


@pytest.mark.parametrize("seed", range(3))
async def test_concurrent_changes(  # noqa: C901
    settings: Settings, redis_server: RedisServer, redis_client: redis.Redis, orc: Orchestrator, seed: int
) -> None:
    """Two clients change the same records while their commands for the set are late; all answers belong together."""
    keys = orc.memory("ed").scope.keys
    running, asked, wrong = 2, 0, list[str]()

    async def write(number: int) -> None:
        nonlocal running
        chance = random.Random(seed * 10 + number)

        async def late(_: Command) -> None:
            await anyio.sleep(chance.choice([0, 0, 0.001, 0.005, 0.02]))

        async with FaultProxy(redis_server.url) as proxy, client_of(settings, proxy) as client:
            for command in ("VADD", "VREM"):
                proxy.watch(command, late)
            memory = client.memory("ed")
            for turn in range(40):
                made = number * 1000 + turn
                id_ = f"r{chance.randrange(3)}"
                match chance.randrange(4):
                    case 0:
                        await memory.delete(id_)
                    case 1:
                        with suppress(NotFound):
                            await memory.update(id_, content={"n": made}, embedding=vector(made))
                    case 2:
                        await memory.store(note(made, id=id_), tier="im")
                    case _:
                        await memory.store(note(made, id=id_))
        running -= 1

    async def ask() -> None:
        nonlocal asked
        memory = orc.memory("ed")
        while running:
            question = vector(asked)
            for hit in await memory.similar(question, 3):
                content: Any = hit.record.content
                (exact,) = cosines(encode_vector("q", question), [encode_vector("v", vector(content["n"]))])
                if abs(exact - hit.score) > 1e-5:
                    wrong.append(f"{hit} instead of {exact}")
            asked += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write, 1)
        tasks.start_soon(write, 2)
        tasks.start_soon(ask)
    assert asked > 10
    assert wrong == []
    assert differences(redis_client, keys) == []


# ----------------------------------------------------------------------------------------------------------- lost keys


@pytest.mark.parametrize("deep", [True, False])
@pytest.mark.parametrize(
    ("lost", "code"),
    [
        ("vec", "unlisted-record"),
        ("emb", "lost-vector"),
        ("emb:meta", "lost-counts"),
        ("stm:hdr", "orphan-vector"),
    ],
)
async def test_a_lost_key(
    team: LocalTeam, memory: Memory, redis_client: redis.Redis, lost: str, code: str, *, deep: bool
) -> None:
    """A scan names the loss, repairs it, and finds nothing more; questions go on."""
    keys = memory.scope.keys
    assert await scan(team, deep=deep) == []
    assert differences(redis_client, keys) == []
    redis_client.delete(keys.key(lost))
    found = await scan(team, repair=False, deep=deep)
    assert (code, False) in codes(found)
    assert (code, True) in codes(await scan(team, deep=deep))
    assert await scan(team, deep=deep) == []
    assert differences(redis_client, keys) == []
    left = {"emb": 0, "stm:hdr": 5}.get(lost, 10)
    assert len(stored_vectors(redis_client, keys)) == left
    hits = await memory.similar(vector(7), 10)
    assert len(hits) == left
    assert redis_client.exists(keys.key("vec")) == (left > 0)
    assert all(
        redis_client.pttl(key) > 0
        for key in (keys.key(part) for part in ("emb", "emb:meta", "vec"))
        if redis_client.exists(key)
    )
    await memory.store_many([note(seed) for seed in range(10)])
    assert await scan(team) == []
    assert (await memory.similar(vector(7), 1))[0].score == pytest.approx(1)


@pytest.fixture(params=[0, 5000], ids=["alone", "among many"])
def other_keys(request: pytest.FixtureRequest, redis_client: redis.Redis) -> Iterator[None]:
    """Keys of others on the server, so that the keys of a memory come in several steps of a scan."""
    names = [f"others:{number}" for number in range(request.param)]
    with redis_client.pipeline(transaction=False) as pipeline:
        for name in names:
            pipeline.set(name, "")
        pipeline.execute()
    yield
    if names:
        redis_client.unlink(*names)


@pytest.mark.parametrize("vectors", [False, True])
async def test_what_a_scan_sends(
    settings: Settings, redis_server: RedisServer, other_keys: None, *, vectors: bool
) -> None:
    """At rest a scan sends nothing for a memory without vectors, and counts those of one that has some once."""
    async with FaultProxy(redis_server.url) as proxy:
        redis = settings.redis.model_copy(update={"url": type(settings.redis.url)(proxy.url)})  # type: ignore[misc]
        async with run_local_team(settings.model_copy(update={"redis": redis}), supervised=False) as behind:
            await behind.orc.memory("ed").store_many(
                [note(seed, embedding=vector(seed) if vectors else None) for seed in range(150)]
            )
            await scan(behind, deep=False)
            before = len(proxy.commands())
            assert await scan(behind, deep=False) == []
            sent = Counter(each.name for each in proxy.commands()[before:])
            # The headers are read in one step, and notes of simulations once, with vectors and without.
            assert (sent["HSCAN"], sent["HRANDFIELD"]) == (1, 1)
            assert (sent["VCARD"], sent["HEXISTS"]) == (int(vectors), int(vectors))


async def test_single_entries_that_are_lost(team: LocalTeam, memory: Memory, redis_client: redis.Redis) -> None:
    """One lost vector, one lost element, one vector of an unknown record, one with another number than its header's."""
    keys = memory.scope.keys
    emb, vec = keys.key("emb"), keys.key("vec")
    value = redis_client.hget(emb, "r3")
    redis_client.hdel(emb, "r1")
    run(redis_client, "VREM", vec, next(name for name in elements(redis_client, keys) if name.endswith(":r2")))
    redis_client.hset(emb, "unknown", value)
    redis_client.hset(emb, "r4", redis_client.hget(emb, "r5"))
    size = (await memory.stats()).bytes
    found = await scan(team)
    assert codes(found) == {
        ("lost-vector", True),
        ("unlisted-record", True),
        ("orphan-vector", True),
        ("orphan-entry", True),
    }
    assert await scan(team) == []
    assert differences(redis_client, keys) == []
    assert {name.partition(":")[2] for name in named_vectors(redis_client, keys)} == {
        f"r{n}" for n in (0, 2, 3, 5, 6, 7, 8, 9)
    }
    records = await memory.get("r1", "r4", "r2")
    assert [record and record.has_vector for record in records] == [False, False, True]
    assert (await memory.stats()).bytes == size - 2 * 4 * 16


async def test_stale_elements(team: LocalTeam, memory: Memory, redis_client: redis.Redis) -> None:
    """Elements that a late writer has added are found by no question, and each scan removes them, deep or not."""
    keys = memory.scope.keys
    before = elements(redis_client, keys)
    await add_late(redis_client, keys, [f"{number}:r{number % 20}" for number in range(1, 700)])
    assert len(elements(redis_client, keys)) == 709
    found = await scan(team, deep=False)
    assert codes(found) == {("orphan-entry", True)}
    assert len(found) == 699
    assert elements(redis_client, keys) == before
    assert await scan(team, deep=False) == []


@pytest.mark.parametrize("dims", [16, 3])
async def test_a_set_without_vectors(team: LocalTeam, redis_client: redis.Redis, dims: int) -> None:
    """A late writer makes the set of a memory that has no vectors, of any dimension: records are stored as ever."""
    memory = team.orc.memory("ed")
    keys = memory.scope.keys
    await add_late(redis_client, keys, ["1:a", "2:b", "x", "\u00b2:c"], dims=dims)
    assert (await memory.similar(vector(1), 3)).hits == ()
    await memory.store_many([note(seed) for seed in range(5)])
    assert (await memory.similar(vector(3), 1))[0].record.id == "r3"
    await scan(team)
    assert differences(redis_client, keys) == [] or dims == 3
    await memory.delete(*[f"r{seed}" for seed in range(5)])
    await add_late(redis_client, keys, ["1:a"], dims=dims)
    assert redis_client.pttl(keys.key(VECTOR_SET)) == -1
    assert codes(await scan(team)) == {("no-lifetime", True), ("orphan-entry", True)}
    assert not redis_client.exists(keys.key(VECTOR_SET))
