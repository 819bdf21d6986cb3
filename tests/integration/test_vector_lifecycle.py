"""Vectors of records through their life: tiers, long-term storage, backups, erasure, and writers that come too late."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec
import pytest

from orchestrator import JsonLinesStore, Record, RecordFilter, ServerRefused, SqliteStore
from orchestrator.memory import tiers
from orchestrator.repair.scope_scan import ScopeScan
from orchestrator.store.keys import CODES, VECTOR_SET, VECTORS, VECTORS_LOG, VECTORS_PENDING
from orchestrator.store.script_files import all_scripts
from orchestrator.vectors.encoding import encode_vector
from orchestrator.views.backup import open_backup, save_pool
from tests.faultkit.commands import script
from tests.faultkit.processes import ActorProcess
from tests.faultkit.proxy import FaultProxy, ThreadedProxy
from tests.helpers.guards import keys_of, keys_without_ttl
from tests.helpers.late_agents import late
from tests.helpers.local_team import local_settings, run_local_team
from tests.helpers.text_scan import keys_with
from tests.helpers.vectors import add_late, differences, elements, note, stored_vectors, vector
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence
    from pathlib import Path

    import redis

    from orchestrator import Memory
    from orchestrator.core.settings import Settings
    from orchestrator.store.keys import ScopeKeys
    from tests.faultkit.servers import RedisServer
    from tests.helpers.local_team import LocalTeam

_OF_VECTORS = (VECTORS, VECTOR_SET, VECTORS_PENDING, CODES, VECTORS_LOG)


@pytest.fixture
async def team(settings: Settings) -> AsyncIterator[LocalTeam]:
    """A client, and no supervisor."""
    async with run_local_team(settings, supervised=False) as running:
        yield running


@pytest.fixture
async def memory(team: LocalTeam) -> Memory:
    """The memory of an agent."""
    return team.orc.memory("ed")


async def scan(team: LocalTeam) -> list[str]:
    """Scan and repair once as the supervisor does; return the codes."""
    steps = ScopeScan(team.services, repair=True, deep=False, upkeep=True).steps()
    return [finding.code async for found in steps for finding in found]


async def best(memory: Memory, seed: int) -> str | None:
    """The record that is found by the vector of a seed, if its score is 1."""
    hits = (await memory.similar(vector(seed), 1, min_score=0.999)).hits
    return hits[0].record.id if hits else None


# ---------------------------------------------------------------------------------------------------------------- life


@pytest.mark.parametrize("settings", [{"memory": {"max_stm_records": 5, "max_im_records": 100}}], indirect=True)
async def test_tiers(memory: Memory, redis_client: redis.Redis) -> None:
    """A move by overflow, a record that is superseded and put back, forgotten or swept: its vector goes with it."""
    keys = memory.scope.keys
    await memory.store_many([note(seed) for seed in range(12)])
    assert (await memory.stats()).im.records == 7
    assert differences(redis_client, keys) == []
    assert [await best(memory, seed) for seed in (0, 11)] == ["r0", "r11"]
    await memory.supersede("r0", "r11")
    assert await best(memory, 0) is None
    assert differences(redis_client, keys) == []
    await memory.supersede("r0", None)
    assert await best(memory, 0) == "r0"
    await memory.store(note(50, ttl=0.05))
    await anyio.sleep(0.06)
    assert await best(memory, 50) is None
    report = await memory.sweep()
    assert report.expired == 1
    assert differences(redis_client, keys) == []
    assert len(elements(redis_client, keys)) == 12
    preview = await memory.preview_forget(RecordFilter(ids=("r1", "r2")))
    assert (await memory.forget(preview)).count == 2
    assert len(elements(redis_client, keys)) == 10
    assert differences(redis_client, keys) == []
    lives = {redis_client.pexpiretime(keys.key(part)) for part in ("emb", "emb:meta", "vec")}
    assert len(lives) == 1
    assert min(lives) >= redis_client.pexpiretime(keys.key("im:hdr"))


class _Named:
    """An embedder of which only the name counts."""

    def __init__(self, name: str) -> None:
        self.name, self.dims = name, 16

    async def embed(self, texts: Sequence[str], /) -> list[list[float]]:
        """Return the vector of the length of each text."""
        return [vector(len(text)) for text in texts]


@pytest.mark.parametrize("store", [SqliteStore, JsonLinesStore])
async def test_long_term_storage(memory: Memory, redis_client: redis.Redis, tmp_path: Path, store: Any) -> None:
    """A record comes back with its vector; the vector set follows; an embedder leaves out vectors of another one."""
    sink = store(tmp_path / "saved")
    mine = memory.with_embedder(_Named("one"))
    await mine.store_many([Record(id=f"r{n}", step=n, kind="note", content="x" * n) for n in range(1, 4)], tier="im")
    await memory.store(Record(id="plain", step=9, kind="note", content=1), tier="im")
    keys = memory.scope.keys
    assert await memory.offload(sink) == 4
    assert not redis_client.exists(*(keys.key(part) for part in _OF_VECTORS))
    saved = {record.id: record async for record in memory.offloaded(sink)}
    assert saved["r2"].embedding == encode_vector("v", vector(2))
    assert saved["plain"].embedding is None
    assert [record.embedding is None async for record in memory.with_embedder(_Named("two")).offloaded(sink)] == [
        True
    ] * 4
    await mine.store_many([record async for record in mine.offloaded(sink)], tier="im")
    assert await best(memory, 2) == "r2"
    assert differences(redis_client, keys) == []
    await sink.aclose()


async def test_items_of_an_older_program(memory: Memory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item without the columns of vectors is read."""
    sink = SqliteStore(tmp_path / "saved")
    await memory.store(note(1), tier="im")

    def encode(entry: Any) -> bytes:
        row = msgspec.json.decode(msgspec.json.encode(entry))
        return msgspec.json.encode({name: value for name, value in row.items() if name not in {"embedding", "space"}})

    monkeypatch.setattr(tiers, "_encode_entry", encode)
    assert await memory.offload(sink) == 1
    (record,) = [record async for record in memory.offloaded(sink)]
    assert (record.id, record.embedding) == ("r1", None)
    await sink.aclose()


# ------------------------------------------------------------------------------------------------------------- backups


@pytest.fixture
def target(running_server: Callable[[str], RedisServer], request: pytest.FixtureRequest) -> Iterator[Settings]:
    """A prefix without data on a server."""
    server = running_server(request.param)
    settings = local_settings(server.url, f"t{os.urandom(5).hex()}:test:t")
    yield settings
    with server.client() as client:
        keys = keys_of(client, settings.prefix)
        immortal = keys_without_ttl(client, keys)
        if keys:
            client.unlink(*keys)
        assert immortal == []


@pytest.mark.parametrize("target", ["newest", "old"], indirect=True)
@pytest.mark.default_user
async def test_backup(
    team: LocalTeam, memory: Memory, target: Settings, tmp_path: Path, running_server: Callable[[str], RedisServer]
) -> None:
    """A restore makes the indices of vectors from the vectors, also on a server without vector sets, and back."""
    await memory.store_many([note(seed) for seed in range(30)])
    path, second = tmp_path / "pool.orc.gz", tmp_path / "second.orc.gz"
    await save_pool(team.services, path)
    report = await (await open_backup(path)).restore(target)
    assert report.corrected == {}
    async with run_local_team(target, supervised=False) as copy:
        there = copy.orc.memory("ed")
        found = await there.similar(vector(3), 5)
        assert [hit.record.id for hit in found] == [hit.record.id for hit in await memory.similar(vector(3), 5)]
        has_sets = (await copy.services.store.capabilities.get()).vector_sets
        assert found.rung == ("vectorset" if has_sets else "exact")
        assert await scan(copy) == []
        await there.update("r3", embedding=vector(99))
        await there.delete("r4")
        await save_pool(copy.services, second)
    back = local_settings(running_server("newest").url, f"t{os.urandom(5).hex()}:test:t")
    await (await open_backup(second)).restore(back)
    async with run_local_team(back, supervised=False) as again:
        with running_server("newest").client() as client:
            keys = again.orc.memory("ed").scope.keys
            assert differences(client, keys) == []
            assert len(elements(client, keys)) == 29
            assert await best(again.orc.memory("ed"), 99) == "r3"
            client.unlink(*keys_of(client, back.prefix))


# ------------------------------------------------------------------------------------------------------------- erasure


async def _plant(memory: Memory) -> None:
    await memory.store_many([note(seed, id=f"eve7x{seed}", subject="eve") for seed in range(20)])
    await memory.store_many([note(seed) for seed in range(20, 25)], tier="im")
    await memory.store(note(30, id="eve7ximportant", subject="eve"), tier="im")


def _traces(settings: Settings, client: redis.Redis, keys: ScopeKeys) -> list[str]:
    """The keys that name a record of the person, or have its vector."""
    planted = {encode_vector("v", vector(seed)) for seed in (*range(20), 30)}
    held = [each for each in client.hvals(keys.key(VECTORS)) if each[8:] in planted]
    return keys_with(settings, "eve7x") + [keys.key(VECTORS)] * bool(held)


async def test_erasure(team: LocalTeam, memory: Memory, redis_client: redis.Redis) -> None:
    """No key has a vector or an id of the person, nor what a late writer added; vectors of others stay."""
    keys = memory.scope.keys
    await _plant(memory)
    before = _traces(team.settings, redis_client, keys)
    assert {name.rpartition("}:")[2] for name in before} >= {VECTORS, VECTOR_SET, VECTORS_LOG}
    await add_late(redis_client, keys, [f"{number}:eve7x{number}" for number in range(1, 600)])
    redis_client.hset(keys.key(VECTORS), "eve7xorphan", redis_client.hvals(keys.key(VECTORS))[0])
    report = await team.orc.subjects.erase("eve", asked_by="ticket 7")
    assert (report.records, report.left) == (21, [])
    assert _traces(team.settings, redis_client, keys) == []
    assert differences(redis_client, keys) == []
    assert len(elements(redis_client, keys)) == 5
    assert await best(memory, 22) == "r22"
    assert await scan(team) == []


_ERASES = """
import anyio
from orchestrator import Orchestrator

async def main():
    async with Orchestrator() as orc:
        await orc.subjects.erase("eve", asked_by="ticket 7")

anyio.run(main)
"""


@pytest.mark.parametrize("at", ["VREM", "settle"])
async def test_a_killed_erasure(
    team: LocalTeam, memory: Memory, redis_client: redis.Redis, redis_server: RedisServer, at: str
) -> None:
    """A process that dies between the records and the vector set leaves vectors, and a repeat removes them."""
    keys = memory.scope.keys
    await _plant(memory)
    place = script(all_scripts()["memory/settle_vectors"].sha) if at == "settle" else at
    with ThreadedProxy(redis_server.url) as proxy:
        env = {"ORC_REDIS__URL": proxy.url, "ORC_PREFIX": team.settings.prefix}
        with ActorProcess.python("-c", _ERASES, name="eraser", env=env) as eraser:
            proxy.fail_command(place, how="swallow")
            proxy.watch(place, lambda _: eraser.kill())
            assert await anyio.to_thread.run_sync(eraser.wait_exit, 30) == -9, eraser.output
    assert await memory.get("eve7x1") == [None]
    assert _traces(team.settings, redis_client, keys)
    report = await team.orc.subjects.erase("eve", asked_by="ticket 7")
    assert report.left == []
    assert _traces(team.settings, redis_client, keys) == []
    assert differences(redis_client, keys) == []


async def test_an_erasure_that_redis_refuses(
    team: LocalTeam, memory: Memory, redis_client: redis.Redis, redis_server: RedisServer
) -> None:
    """An erasure fails while Redis refuses to remove vectors from the set, and a repeat goes on."""
    await _plant(memory)
    keys = memory.scope.keys
    user = f"u{os.urandom(4).hex()}"
    redis_client.acl_setuser(user, enabled=True, nopass=True, keys=["*"], channels=["*"], commands=["+@all", "-vrem"])
    try:
        async with FaultProxy(redis_server.url) as proxy:
            url = proxy.url.replace("redis://", f"redis://{user}:x@")
            async with run_local_team(local_settings(url, team.settings.prefix), supervised=False) as limited:
                with pytest.raises(ServerRefused, match="VREM"):
                    await limited.orc.subjects.erase("eve", asked_by="ticket 7")
    finally:
        redis_client.acl_deluser(user)
    assert _traces(team.settings, redis_client, keys)
    assert (await team.orc.subjects.erase("eve", asked_by="ticket 7")).left == []
    assert _traces(team.settings, redis_client, keys) == []


# -------------------------------------------------------------------------------------------------------- late writers


@pytest.mark.parametrize("settings", [{"supervisor": {"sweep_s": 0.2}}], indirect=True)
@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.default_user
async def test_a_paused_worker(
    settings: Settings, redis_client: redis.Redis, redis_server: RedisServer, tmp_path: Path, count: int
) -> None:
    """A worker process that wakes up behind its lease adds vectors: no question returns one, upkeep removes them."""
    gate = tmp_path / "gate"
    env = {"ORC_REDIS__URL": redis_server.url, "ORC_PREFIX": settings.prefix}
    async with run_local_team(settings) as team:
        memory = team.orc.memory("late")
        keys = memory.scope.keys
        with ActorProcess.python(
            "-m", "orchestrator.workers", "tests.helpers.late_agents:late", name="late", env=env
        ) as paused:
            task = await team.orc.submit("remember", {"gate": str(gate), "count": count}, agent="late")
            await wait_for(lambda: "begun" in paused.output, lambda: paused.describe("the first attempt"), 30)
            pid = (await task.status()).detail.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            try:
                await team.work(late)
                assert await task.result(30) == "done"
                right = {rung: await ask(team, rung) for rung in ("vectorset", "lsh", "exact")}
                gate.touch()
            finally:
                os.kill(pid, signal.SIGCONT)
            wrong, asked = list[str](), 0
            while "refused" not in paused.output:
                assert paused.returncode is None, paused.output
                asked += 1
                for hit in await memory.similar(vector(asked % 20), 20):
                    content: Any = hit.record.content
                    if hit.record.id != f"r{content['n']}" or content["n"] >= 20:
                        wrong.append(hit.record.id)
                await anyio.sleep(0.01)
            assert "refused 10" in paused.output
        assert wrong == []
        assert asked > 1
        for rung, answers in right.items():
            assert await ask(team, rung) == answers, rung
        while len(elements(redis_client, keys)) > 20:
            codes = await scan(team)
            assert set(codes) <= {"orphan-entry"}
        assert differences(redis_client, keys) == []
        assert stored_vectors(redis_client, keys) == elements(redis_client, keys)


async def ask(team: LocalTeam, rung: str) -> list[list[tuple[str, float]]]:
    """Ask for the vector of each record on a rung; the records and scores of each answer."""
    client = await team.client(memory__vector_rung=rung)
    answers = []
    for seed in range(20):
        found = await client.memory("late").similar(vector(seed), 5)
        answers.append([(hit.record.id, round(hit.score, 6)) for hit in found])
    return answers
