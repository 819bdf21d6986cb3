"""Memories of users, of domains and of all: every call, their locks, erasure, upkeep, backup and repair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import (
    Agent,
    Fenced,
    InvalidInput,
    JsonLinesStore,
    LockLost,
    Memory,
    MemoryQuery,
    NotFound,
    Occupied,
    Orchestrator,
    Record,
    RecordFilter,
    SubjectErased,
    TaskContext,
)
from orchestrator.locks import scripts
from orchestrator.locks.model import new_nonce
from orchestrator.locks.waiter import RELEASE_TIMEOUT_S, LockWaiter
from orchestrator.repair.scope_scan import ScopeScan
from orchestrator.subjects.places import subject_keys
from orchestrator.testing.temporary_pool import new_prefix
from orchestrator.views.backup import open_backup, save_pool
from orchestrator.views.keys import check_scopes, count_keys
from tests.helpers.guards import keys_of
from tests.helpers.local_team import TIMEOUT_S, local_settings, run_local_team
from tests.helpers.text_scan import keys_with

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    import redis

    from orchestrator.core.settings import Settings
    from tests.helpers.local_team import LocalTeam

OWNERS: dict[str, dict[str, Any]] = {
    "user:Ann é": {"user": "Ann é"},
    "domain:billing": {"domain": "billing"},
    "global": {"global_": True},
}
"""By the name of the scope, the arguments that name it."""
PLANTED = "planted9q"


@pytest.fixture
async def orc(settings: Settings) -> AsyncIterator[Orchestrator]:
    """A client; no team runs."""
    async with Orchestrator(settings=settings) as client:
        yield client


def note(step: int, content: Any = None, **columns: Any) -> Record:
    """A record of the kind `note`."""
    return Record(step=step, kind="note", content=content, **columns)


async def ids(memory: Memory) -> list[str]:
    """Ids of the newest records, newest first."""
    return [record.id for record in await memory.recent(100)]


@pytest.mark.parametrize("scope", OWNERS)
async def test_every_call(orc: Orchestrator, scope: str, tmp_path: Path) -> None:
    """Each method works as on the memory of an agent, and another memory sees nothing of it."""
    memory, sink = orc.memory(**OWNERS[scope]), JsonLinesStore(tmp_path)
    assert (await memory.store(note(1, {"a": 1}, id="r1", action="go", position=(1, 1)), op_id="o")).version == 1
    assert (await memory.store(note(1, {"a": 1}, id="r1", action="go", position=(1, 1)), op_id="o")).duplicate
    await memory.store_many([note(step, {"a": step}, id=f"r{step}", importance=step) for step in range(2, 6)])
    assert await ids(memory) == ["r5", "r4", "r3", "r2", "r1"]
    assert (await memory.update("r2", importance=9.0)).version == 2
    with pytest.raises(NotFound, match="scope has no record" if scope == "global" else f"{memory.kind} '.*' has no"):
        await memory.update("r9", importance=1)
    with pytest.raises(NotFound, match="has no record 'r9'"):
        await memory.supersede("r9", "r1")
    assert await memory.touch("r1", "r2") == 2
    assert (await memory.accesses("r1"))["r1"].count == 1
    assert [record.id for record in await memory.important(5)] == ["r2", "r5"]
    assert [record.id for record in await memory.of_action("go")] == ["r1"]
    assert [record.id for record in await memory.of_kind("note", limit=1)] == ["r5"]
    assert [record.id for record in await memory.between(2, 3)] == ["r2", "r3"]
    assert [record.id for record in await memory.history(2)] == ["r4", "r5"]
    assert [record.id for record in await memory.near(1, 1, 0.5)] == ["r1"]
    assert [record.id for record in await memory.query(MemoryQuery(min_importance=4, limit=9))] == ["r5", "r4", "r2"]
    assert (await memory.changes())["a"].change == 1
    assert (at := await memory.at(-1)) is not None
    assert at.id == "r4"
    await memory.supersede("r4", "r5")
    assert await ids(memory) == ["r5", "r3", "r2", "r1"]
    assert (await memory.forget(RecordFilter(ids=("r3",)))).count == 1
    assert await memory.delete("r2") == 1
    await memory.store(note(7, id="old"), tier="im")
    assert (await memory.stats()).im.records == 1
    assert await memory.offload(sink) == 1
    assert [record.id async for record in memory.offloaded(sink)] == ["old"]
    assert (await memory.transition()).moved == 0
    assert (await memory.sweep()).cursor == 0
    assert [record and record.id for record in await memory.get("r1", "r2")] == ["r1", None]
    for other in (orc.memory("billing"), *(orc.memory(**owner) for name, owner in OWNERS.items() if name != scope)):
        assert await other.recent() == []
    if scope != "global":
        assert await orc.memory(memory.id if scope == "domain:billing" else "Ann").recent() == []


@pytest.mark.parametrize("scope", OWNERS)
async def test_vectors(orc: Orchestrator, scope: str) -> None:
    """Records are found by their vectors; those of another memory, and removed ones, are not."""
    memory = orc.memory(**OWNERS[scope])
    await memory.store_many([note(n, id=f"r{n}", embedding=[1.0, n, n * n]) for n in range(6)])
    assert [hit.record.id for hit in await memory.similar([1.0, 3, 9], 1)] == ["r3"]
    with pytest.raises(InvalidInput, match=f"the memory of {memory.scope.keys.words} has vectors with 3 dimensions"):
        await memory.store(note(9, embedding=[1.0, 2.0]))
    for other in (orc.memory("billing"), *(orc.memory(**owner) for name, owner in OWNERS.items() if name != scope)):
        assert (await other.similar([1.0, 3, 9], 1)).hits == ()
    await memory.delete("r3")
    assert "r3" not in {hit.record.id for hit in await memory.similar([1.0, 3, 9], 6)}
    await orc.subjects.erase("Ann é", asked_by="ticket 7")
    assert len(await memory.similar([1.0, 3, 9], 6)) == (0 if "user" in scope else 5)


async def test_owners(orc: Orchestrator) -> None:
    """A memory has one owner; agents alone have names, states and simulations."""
    wrong: tuple[dict[str, Any], ...] = (
        {}, {"agent": "ada", "user": "ada"}, {"user": "a", "domain": "b"}, {"user": ""}, {"domain": "x" * 257},
        {"agent": "a b"}, {"domain": "b", "global_": True},
    )  # fmt: skip
    for owner in wrong:
        with pytest.raises(InvalidInput):
            orc.memory(**owner)
    for owner in OWNERS.values():
        memory = orc.memory(**owner)
        with pytest.raises(InvalidInput, match="only agents have states"):
            memory.states()
        with pytest.raises(InvalidInput, match="memories of agents"):
            await memory.store(note(1, simulation="run"))
        assert await memory.recent() == []
    assert repr(orc.memory(user="u 1")) == "Memory(user:'u 1')"


async def test_records_of_a_user_are_about_the_user(orc: Orchestrator) -> None:
    """A record without a person gets the user; one about another person is refused."""
    memory = orc.memory(user="ann")
    await memory.store_many([note(1, id="a"), note(2, id="b", subject="ann")])
    assert [record.subject for record in await memory.recent()] == ["ann", "ann"]
    with pytest.raises(InvalidInput, match="is about that user, not about 'bob'"):
        await memory.store(note(3, subject="bob"))
    assert await ids(memory) == ["b", "a"]


async def test_leases(orc: Orchestrator) -> None:
    """A program that holds a lock of the scope presents it; an exclusive owner keeps other changes out."""
    for scope, owner in OWNERS.items():
        memory = orc.memory(**owner)

        async def lose(scope: str = scope, memory: Memory = memory) -> None:
            async with orc.locks(scope).hold("memory", ttl=30) as lease:
                await memory.under(lease).store(note(1))
                await orc.services.store.execute("DEL", memory.scope.keys.key("lock:memory"))
                await memory.under(lease).store(note(2))

        with pytest.raises(LockLost):
            await lose()
        async with orc.locks("agent:bo").hold("memory") as lease:
            with pytest.raises(InvalidInput, match=f"agent 'bo' and cannot guard {memory.scope.keys.words}"):
                await memory.under(lease).store(note(2))
        async with orc.locks(scope).hold_scope() as lease:
            impatient = Memory(memory.scope, waiter=memory._writer.waiter, wait_s=0.05)
            with pytest.raises(Occupied, match=f"{memory.scope.keys.words} is held alone") as refused:
                await impatient.store(note(3))
            assert refused.value.scope == scope
            await memory.under(lease).store(note(4))
        assert [record.step for record in await memory.recent()] == [4, 1]


@pytest.mark.parametrize("scope", OWNERS)
async def test_an_attempt_and_its_successor(team: LocalTeam, scope: str) -> None:
    """Changes present a lock of the attempt in the scope; after the task was taken over, none changes anything."""
    agent, owner = Agent("ed"), OWNERS[scope]
    taken, heard = anyio.Event(), list[str]()

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        memory = ctx.memory_of(**owner)
        await memory.store(note(1, id="x"))
        held = await ctx._resources.locks.execution.shared(memory.kind, memory.id).proof()
        assert (held.keys, held.lock) == (memory.scope.keys, f"exec:{ctx.task_id}")
        generation = int(held.value.split(":")[2]) + 1
        call = scripts.claim(
            held.keys, lock=held.lock, task=ctx.task_id, generation=str(generation), nonce=new_nonce(), ttl_ms=60_000
        )
        assert (await team.services.store.call(call)).status == "taken"
        again = ctx.memory_of(**owner)
        for change in (
            again.store(note(2)), again.store_many([note(2)]), again.store(note(3, embedding=[1.0, 2.0])),
            again.update("x", content="late"), again.touch("x"), again.delete("x"),
            again.forget(RecordFilter(ids=("x",))), again.sweep(budget=9),
        ):  # fmt: skip
            try:
                await change
            except Fenced as fenced:
                heard.append(str(fenced.owner))
        taken.set()
        await anyio.sleep_forever()

    await team.work(agent)
    await team.orc.submit("work")
    with anyio.fail_after(TIMEOUT_S):
        await taken.wait()
    assert len(heard) == 8
    memory = team.orc.memory(**owner)
    assert await ids(memory) == ["x"]
    assert (await memory.similar([1.0, 2.0], 1)).hits == ()
    assert await memory.accesses("x") == {}


async def test_tasks_share_a_memory(team: LocalTeam) -> None:
    """Tasks of several agents change the same memories at once; with their end they hold no lock there."""
    agents = [Agent(name) for name in ("ed", "bo")]
    owners = {**OWNERS, "user:bob": {"user": "bob"}}
    met, running = anyio.Event(), list[str]()

    for agent in agents:

        @agent.skill(name=f"work-{agent.name}")
        async def work(ctx: TaskContext) -> None:
            for owner in owners.values():
                await ctx.memory_of(**owner).store(note(1, ctx.agent))
            running.append(ctx.agent)
            if len(running) == 2:
                met.set()
            await met.wait()
            for owner in owners.values():
                await ctx.memory_of(**owner).store(note(2, ctx.agent))

    await team.work(*agents)
    tasks = [await team.orc.submit(f"work-{agent.name}") for agent in agents]
    for task in tasks:
        await task.result(TIMEOUT_S)
    for scope, owner in owners.items():
        found = await team.orc.memory(**owner).recent()
        assert sorted((record.step, record.content) for record in found) == [(1, "bo"), (1, "ed"), (2, "bo"), (2, "ed")]
        assert await team.orc.locks(scope).list() == []


async def test_a_task_with_many_owners(team: LocalTeam, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that has changed the memories of many users releases their locks together, also on a slow network."""
    agent, users = Agent("ed"), [f"u{number}" for number in range(60)]
    release = LockWaiter.release

    async def release_late(waiter: LockWaiter, *lock: Any) -> bool | None:
        await anyio.sleep(1.5 * RELEASE_TIMEOUT_S / len(users))
        return await release(waiter, *lock)

    monkeypatch.setattr(LockWaiter, "release", release_late)

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        for user in users:
            await ctx.memory_of(user=user).store(note(1))

    await team.work(agent)
    await (await team.orc.submit("work")).result(10 * TIMEOUT_S)
    assert [user for user in users if await team.orc.locks(f"user:{user}").list()] == []


async def test_a_task_waits_for_an_exclusive_owner(team: LocalTeam) -> None:
    """While a program holds the user alone, a change of a task waits; it is made when the program lets go."""
    agent, begun = Agent("ed"), anyio.Event()

    @agent.skill
    async def work(ctx: TaskContext) -> str:
        memory = ctx.memory_of(user="ann")
        begun.set()
        return (await memory.store(note(1, id="x"))).id

    await team.work(agent)
    async with team.orc.locks("user:ann").hold_scope() as lease:
        task = await team.orc.submit("work")
        await begun.wait()
        await team.orc.memory(user="ann").under(lease).store(note(0, id="first"))
        assert await ids(team.orc.memory(user="ann")) == ["first"]
    assert await task.result(TIMEOUT_S) == "x"
    assert await ids(team.orc.memory(user="ann")) == ["x", "first"]


async def test_erase(team: LocalTeam, tmp_path: Path) -> None:
    """An erasure removes the memory of the user, and the records about the user from domains and the global memory."""
    orc, sink = team.orc, JsonLinesStore(tmp_path)
    eve, bob = orc.memory(user="eve"), orc.memory(user="bob")
    shared = [orc.memory(domain="billing"), orc.memory(global_=True)]
    await eve.store_many([note(step, PLANTED, id=f"e{step}") for step in range(120)])
    await eve.store(note(0, PLANTED, id="old"), tier="im")
    assert await eve.offload(sink) == 1
    await eve.store(note(0, PLANTED, id="older"), tier="im")
    await bob.store(note(1, id="kept"))
    for memory in shared:
        await memory.store_many(
            [note(1, PLANTED, subject="eve"), note(2, id="kept", subject="bob"), note(3, id="none")]
        )
    assert {place.words for place in await orc.subjects.places("eve")} == {
        "user 'eve'", "domain 'billing'", "the global scope",
    }  # fmt: skip
    report = await orc.subjects.erase("eve", asked_by="ticket 7", stores=[sink])
    assert (report.records, report.stored, report.left) == (123, 1, [])
    assert keys_with(team.settings, PLANTED) == []
    assert [record.id async for record in eve.offloaded(sink)] == []
    assert (await eve.stats()).records == 0
    assert await ids(bob) == ["kept"]
    for memory in shared:
        assert await ids(memory) == ["none", "kept"]
        with pytest.raises(SubjectErased):
            await memory.store(note(4, PLANTED, subject="eve"))
    with pytest.raises(SubjectErased):
        await eve.store(note(4, PLANTED))
    assert keys_with(team.settings, PLANTED) == []


async def test_erase_after_the_places_were_lost(team: LocalTeam, redis_client: redis.Redis) -> None:
    """The memory of the user goes without a note that names it; one that there is not leaves no key."""
    await team.orc.memory(user="eve").store(note(1, PLANTED))
    redis_client.delete(subject_keys(team.settings.prefix, "eve").key("places"))
    report = await team.orc.subjects.erase("eve", asked_by="ticket 7")
    assert (report.records, report.left, keys_with(team.settings, PLANTED)) == (1, [], [])
    await team.orc.subjects.erase("bob", asked_by="ticket 7")
    assert not [key for key in keys_of(redis_client, team.settings.prefix) if "{user:bob}" in key]


async def test_upkeep(settings: Settings) -> None:
    """The scan of the supervisor removes expired records, and moves those that are due."""
    tiers = settings.memory.model_copy(update={"stm_age_s": 0.2, "keep_importance": 0.5})
    async with run_local_team(settings.model_copy(update={"memory": tiers}), supervised=False) as team:
        memories = [team.orc.memory(**owner) for owner in OWNERS.values()]
        for memory in memories:
            await memory.store_many(
                [note(step, importance=1.0, id=f"n{step}", ttl=0.2 if step % 2 else None) for step in range(20)]
            )
        await anyio.sleep(0.25)
        scan = ScopeScan(team.services, repair=True, upkeep=True, deep=False)
        assert [finding async for found in scan.steps() for finding in found] == []
        assert scan.kept["memory"] >= 3 * 20
        for memory in memories:
            stats = await memory.stats()
            assert (stats.stm.records, stats.im.records) == (0, 10)


async def test_repair_and_report(team: LocalTeam, redis_client: redis.Redis) -> None:
    """Lost indices come back, of one scope or of all; the report of keys names the scopes and knows each key."""
    for name, owner in OWNERS.items():
        memory = team.orc.memory(**owner)
        await memory.store_many([note(step, id=f"n{step}") for step in range(5)])
        redis_client.delete(memory.scope.keys.key("stm:time"))
        assert await memory.recent() == []
        (group,) = await check_scopes(team.services, scope=name, repair=True)
        assert (group.code, group.count, group.repaired) == ("unlisted-record", 5, True)
        assert len(await memory.recent()) == 5
    assert await check_scopes(team.services) == []
    counts = await count_keys(team.services)
    assert {row.scope for row in counts.scopes} >= {"user:Ann%20%C3%A9", "domain:billing", "global:all"}
    assert counts.alarms == []
    assert [row for row in counts.kinds if row.scope == "foreign"] == []


@pytest.mark.default_user
async def test_backup_and_restore(team: LocalTeam, tmp_path: Path) -> None:
    """A restore brings records, tiers, accesses and the places of people back, and makes the indices again."""
    for owner in OWNERS.values():
        memory = team.orc.memory(**owner)
        subject = memory.id if "user" in owner else "eve"
        await memory.store_many(
            [note(step, PLANTED, id=f"n{step}", subject=subject, embedding=[1.0, step]) for step in range(50)]
        )
        await memory.store(note(9, PLANTED, id="old", subject=subject), tier="im")
        await memory.touch("n3")
    path = tmp_path / "pool.orc"
    assert (await save_pool(team.services, path, compress=False)).skipped == ()
    url = team.settings.redis.url
    assert url is not None
    target = local_settings(url.get_secret_value(), new_prefix())
    report = await (await open_backup(path)).restore(target)
    assert report.corrected == {}
    async with run_local_team(target, supervised=False) as copy:
        assert await check_scopes(copy.services) == []
        for owner in OWNERS.values():
            before, after = team.orc.memory(**owner), copy.orc.memory(**owner)
            assert [(one.id, one.step, one.tier, one.subject) for one in await after.recent(99)] == [
                (one.id, one.step, one.tier, one.subject) for one in await before.recent(99)
            ]
            assert len(await after.of_kind("note")) == 51
            assert (await after.accesses("n3"))["n3"].count == 1
            assert [hit.record.id for hit in await after.similar([1.0, 7], 1)] == ["n7"]
        await copy.services.store.execute("UNLINK", *await copy.services.store.execute("KEYS", f"{target.prefix}:*"))
