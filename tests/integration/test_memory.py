"""`ctx.memory` and `orc.memory`: records and their order, who may change them, recalls, versions, what is refused."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from orchestrator import (
    Agent,
    Fenced,
    InvalidInput,
    LockLost,
    Memory,
    MemoryFull,
    MemoryQuery,
    NotFound,
    Occupied,
    Orchestrator,
    Record,
    TaskContext,
    ValueChange,
    sync,
)
from orchestrator.core.errors import DamagedData
from orchestrator.locks import scripts
from orchestrator.locks.fenced_writer import CallerRow
from orchestrator.locks.model import new_nonce
from orchestrator.memory import queries
from orchestrator.memory import scripts as memory_scripts
from orchestrator.memory.scripts import MemoryChange, pack_limits
from orchestrator.services import pool_keys
from orchestrator.store.keys import ScopeKeys
from tests.helpers.local_team import TIMEOUT_S
from tests.lua.memory.records import record

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    import redis

    from orchestrator.core.settings import Settings
    from orchestrator.memory.scripts import MemoryReply
    from orchestrator.store.calls import Call
    from tests.helpers.local_team import LocalTeam


@pytest.fixture
async def orc(settings: Settings) -> AsyncIterator[Orchestrator]:
    """A client; no team runs."""
    async with Orchestrator(settings=settings) as client:
        yield client


@pytest.fixture
async def memory(orc: Orchestrator) -> Memory:
    """The memory of an agent, changed without a lock."""
    return orc.memory("ed")


def state(step: int, content: Any = None, **columns: Any) -> Record:
    """A record of the kind `state`."""
    return Record(step=step, kind="state", content=content, **columns)


async def test_a_record_comes_back(memory: Memory) -> None:
    """All that was stored is returned, with the names as they were given."""
    content = {"é": [1.0, None, {"x": 2**53 + 1}], "empty": []}
    record = Record(
        step=-7, kind="a {b}:~é", content=content, id="my id", importance=0.1, action="go to/é", position=(1.5, -2),
        subject="bob@example.org", simulation="S 1", ttl=timedelta(hours=1), meta={"by": "é"},
    )  # fmt: skip
    change = await memory.store(record)
    assert (change.id, change.version, change.duplicate, change.older) == ("my id", 1, False, False)
    (stored,) = await memory.get("my id")
    assert stored is not None
    for name in ("id", "step", "kind", "content", "importance", "action", "position", "subject", "simulation", "meta"):
        assert getattr(stored, name) == getattr(record, name), name
    assert (stored.tier, stored.version, stored.superseded_by) == ("stm", 1, None)
    assert abs(stored.stored - datetime.now(UTC)) < timedelta(minutes=1)
    assert stored.expires - stored.stored == timedelta(hours=1)
    assert (
        await memory.query(MemoryQuery(kinds=("a {b}:~é",), actions=("go to/é",), subject="bob@example.org"))
        is not None
    )
    assert [each.id for each in await memory.of_action("go to/é")] == ["my id"]
    assert (await memory.near(1, -2, 0.5)).records == (stored,)


@pytest.mark.parametrize("part", ["rec", "hdr"])
async def test_damaged_records(memory: Memory, settings: Settings, redis_client: redis.Redis, part: str) -> None:
    """They hide no other record of a recall or a page; who asks for one alone learns that it is damaged."""
    await memory.store_many([state(number, number, id=f"r{number}") for number in range(4)])
    keys = pool_keys(settings).scope("agent", "ed")
    damage = {"rec": (b"1,2", b"{", b"[" * 100_000), "hdr": (b"", b"\xff", b"\x93\x01")}[part]
    for number, garbage in enumerate(damage):
        redis_client.hset(keys.key(keys.tier_part("stm", part)), f"r{number}", garbage)
    assert [each.content for each in await memory.recent()] == [3]
    assert [each and each.content for each in await memory.get("r0", "r1", "r3", "r9")] == [None, None, 3, None]
    scope = memory._scope
    assert [[each.id for each in page] async for page in queries.read_pages(scope)] == [["r3"]]
    with pytest.raises(DamagedData):
        await memory.get("r1")


async def test_order(memory: Memory) -> None:
    """Records of one step keep the order of their storing, also behind those of other steps; ids sort by time."""
    stored = await memory.store_many([state(step, number) for number, step in enumerate([5, 5, 3, 5, 3, 9])])
    assert [each.content for each in await memory.recent()] == [5, 3, 1, 0, 4, 2]
    assert [each.content for each in await memory.between(3, 5)] == [2, 4, 0, 1, 3]
    assert [change.id for change in stored] == sorted(change.id for change in stored)


async def test_positions(memory: Memory) -> None:
    """0 is the newest, -1 the one before it; beyond the oldest there is none. The same among the records of a kind."""
    assert await memory.at() is None
    assert await memory.history() == []
    assert await memory.changes() == {}
    for step in range(10):
        await memory.store(state(step, step))
        await memory.store(Record(step=step, kind="noise", content=None))
    found = [await memory.at(-back, kind="state") for back in range(11)]
    assert [each and each.content for each in found] == [*range(9, -1, -1), None]
    assert [each.content for each in await memory.history(3, kind="state")] == [7, 8, 9]
    assert [each.content for each in await memory.history(3, kind="state", order="new")] == [9, 8, 7]
    newest, before = await memory.at(), await memory.at(-1)
    assert newest is not None
    assert before is not None
    assert (newest.kind, before.kind) == ("noise", "state")


async def test_changes(memory: Memory) -> None:
    """Numbers with change and percentage of the absolute base; other values; fields that appear or vanish."""
    await memory.store(state(1, {"debt": -10, "zero": 0, "mood": "calm", "gone": 1, "flag": True, "same": 2.5}))
    await memory.store(state(2, {"debt": -5}))
    await memory.store(state(3, {"debt": -15, "zero": 2, "mood": "angry", "new": [1], "flag": 1, "same": 2.5}))
    assert await memory.changes(2) == {
        "debt": ValueChange("number", -10, -15, changed=True, change=-5, percent=-50.0),
        "zero": ValueChange("number", 0, 2, changed=True, change=2, percent=None),
        "mood": ValueChange("other", "calm", "angry", changed=True),
        "flag": ValueChange("other", True, 1, changed=True),  # noqa: FBT003 - the value before
        "same": ValueChange("number", 2.5, 2.5, changed=False, change=0.0, percent=0.0),
        "new": ValueChange("added", None, [1], changed=True),
        "gone": ValueChange("removed", 1, None, changed=True),
    }
    assert (await memory.changes())["debt"].percent == -200.0
    assert await memory.changes(3) == {}


async def test_replaced_as_a_whole(memory: Memory) -> None:
    """A second record of one id leaves nothing of the first, in whichever tier that is, and keeps its place."""
    await memory.store_many(
        [state(1, {"a": 1}, id="x", action="go", position=(0, 0), importance=9), state(1, 2, id="y")]
    )
    await memory.touch("x")
    await memory.store(Record(step=1, kind="plan", content={"b": 2}, id="x"))
    (stored,) = await memory.get("x")
    assert stored is not None
    assert (stored.content, stored.version, stored.action, stored.position) == ({"b": 2}, 2, None, None)
    assert await memory.of_action("go") == []
    assert [each.id for each in await memory.of_kind("state")] == ["y"]
    assert (await memory.near(0, 0, 5)).records == ()
    assert await memory.accesses("x", "y") == {}
    assert [each.id for each in await memory.recent()] == ["y", "x"]
    await memory.store(state(2, 3, id="x"), tier="im")
    assert await memory.get("x", tier="stm") == [None]
    assert [(each.id, each.tier) for each in await memory.recent()] == [("x", "im"), ("y", "stm")]


async def test_versions(memory: Memory) -> None:
    """Versions may come late or twice; the highest wins. An op id makes a change once, and returns the same record."""
    for version, answer in (
        (5, (5, False, False)),
        (3, (5, False, True)),
        (5, (5, True, False)),
        (6, (6, False, False)),
    ):
        change = await memory.store(state(1, version, id="x", version=version))
        assert (change.version, change.duplicate, change.older) == answer
    first = await memory.store(state(2), op_id="mine")
    again = await memory.store(state(2), op_id="mine")
    assert (again.id, again.duplicate) == (first.id, True)
    assert await memory.of_kind("state") == await memory.recent()
    assert len(await memory.recent()) == 2
    await memory.store_many([state(3), state(4)], op_id="pair")
    with pytest.raises(InvalidInput, match="names another change"):
        await memory.store_many([state(3)], op_id="pair")


async def test_op_ids_of_other_records(memory: Memory) -> None:
    """An op id that has named other records is refused, whatever the change; a batch and a single store share none."""
    await memory.store_many([state(1, id="a"), state(2, id="b")])
    calls: list[tuple[Callable[[str], Awaitable[Any]], Callable[[str], Awaitable[Any]]]] = [
        (lambda op: memory.store(state(3, id="c"), op_id=op), lambda op: memory.store(state(3, id="d"), op_id=op)),
        (lambda op: memory.store(state(3), op_id=op), lambda op: memory.store(state(4), op_id=op)),
        (lambda op: memory.update("a", importance=1, op_id=op), lambda op: memory.update("b", importance=1, op_id=op)),
        (lambda op: memory.touch("a", op_id=op), lambda op: memory.touch("a", "b", op_id=op)),
        (lambda op: memory.supersede("a", "b", op_id=op), lambda op: memory.supersede("a", None, op_id=op)),
        (lambda op: memory.delete("a", op_id=op), lambda op: memory.delete("b", op_id=op)),
    ]
    for number, (call, other) in enumerate(calls):
        first = await call(f"o{number}")
        with pytest.raises(InvalidInput, match=f"op_id 'o{number}' names another change"):
            await other(f"o{number}")
        again = await call(f"o{number}")
        assert again == first if isinstance(first, int) else (again.version, again.duplicate) == (first.version, True)
    assert await memory.get("d") == [None]
    await memory.store_many([state(7, id="m")], op_id="o")
    for op_id in ("o", "o/0", "o many 0"):
        assert not (await memory.store(state(8, id=op_id), op_id=op_id)).duplicate


async def test_updates(memory: Memory) -> None:
    """An update keeps place, deadline and the rest; a deleted record is not made again; touches count."""
    await memory.store_many([state(1, 1, id="x", importance=1, meta={"m": 1}), state(1, 2, id="y")])
    before = (await memory.get("x"))[0]
    assert (await memory.update("x", importance=5)).version == 2
    assert (await memory.update("x", content=None)).version == 3
    after = (await memory.get("x"))[0]
    assert before is not None
    assert after is not None
    assert (after.content, after.importance, after.meta) == (None, 5.0, {"m": 1})
    assert (after.stored, after.expires) == (before.stored, before.expires)
    assert [each.id for each in await memory.recent()] == ["y", "x"]
    assert [each.id for each in await memory.important(2)] == ["x"]
    late = await memory.update("x", importance=0, newer_than=2)
    assert (late.version, late.older) == (3, True)
    same = await memory.update("x", importance=0, newer_than=3)
    assert (same.version, same.duplicate) == (3, True)
    assert (await memory.update("x", importance=0, newer_than=8)).version == 8
    assert await memory.touch("x", "gone") == 1
    assert await memory.touch("x", op_id="t") == 1
    assert await memory.touch("x", op_id="t") == 1
    assert (await memory.accesses("x", "y"))["x"].count == 2
    assert await memory.delete("x", "gone") == 1
    with pytest.raises(NotFound, match="has no record 'x'"):
        await memory.update("x", importance=1)
    assert await memory.get("x") == [None]


async def test_queries(memory: Memory) -> None:
    """All conditions together, in each order, over both tiers; an answer says when the search was cut."""
    for step in range(20):
        await memory.store(
            Record(
                step=step, kind=("state", "plan")[step % 2], action=("go", "eat", "look")[step % 3], content=step,
                importance=step % 5,
            ),
            tier="im" if step % 4 == 0 else "stm",
        )  # fmt: skip

    async def find(**conditions: Any) -> list[int]:
        return [each.content for each in await memory.query(MemoryQuery(**conditions))]

    assert await find(since=3, until=15, kinds=("state",), actions=("go", "look"), min_importance=1) == [14, 12, 8, 6]
    assert await find(kinds=("plan",), order="old", limit=2) == [1, 3]
    assert await find(min_importance=4, order="important", since=5) == [19, 14, 9]
    assert await find(kinds=("state", "plan"), limit=3) == [19, 18, 17]
    assert await find(tiers=("im",)) == [16, 12, 8, 4, 0]
    assert await find(kinds=("none",)) == []
    found = await memory.query(MemoryQuery(limit=1))
    assert (len(found), found.complete, found[0].content, found[:1][0].content) == (1, True, 19, 19)


async def test_equal_importances_are_in_order_of_ids(memory: Memory) -> None:
    """The records of a rare kind are read first, and sorted by importance afterwards."""
    rows = [
        Record(
            id=f"r{step:03}", step=step, kind="rare" if step % 4 == 0 else "often", content=step, importance=step % 5
        )
        for step in range(400)
    ]
    await memory.store_many(rows)
    wanted = sorted((row for row in rows if row.kind == "rare"), key=lambda row: (row.importance, row.id), reverse=True)
    for limit in (1, 40, 60, 1000):
        found = await memory.query(MemoryQuery(kinds=("rare",), order="important", limit=limit))
        assert [each.id for each in found] == [row.id for row in wanted[:limit]]


async def test_near(memory: Memory) -> None:
    """Exact distances, the nearest first; a radius over many cells finds the same."""
    places = [(0, 0), (3, 4), (6, 8), (-30, 0), (1000, 1000)]
    await memory.store_many([state(1, number, position=place) for number, place in enumerate(places)])
    await memory.store(state(1, "nowhere"))
    for radius, expected in ((4.9, [0]), (5, [0, 1]), (10, [0, 1, 2]), (31, [0, 1, 2, 3]), (10_000, [0, 1, 2, 3, 4])):
        assert [each.content for each in await memory.near(0, 0, radius)] == expected
    assert [each.content for each in await memory.near(990, 995, 20, limit=1)] == [4]


async def test_lifetimes(orc: Orchestrator, memory: Memory) -> None:
    """An expired record is not returned by any call; the next store removes it with all its entries."""
    await memory.store(state(1, "short", id="short", ttl=0.05, action="go", subject="bob", position=(1, 1)))
    await memory.store(state(1, "long", id="long"))
    while (await memory.get("short"))[0] is not None:  # noqa: ASYNC110 - the server's clock
        await asyncio.sleep(0.01)
    assert [each.id for each in await memory.recent()] == ["long"]
    assert await memory.at(-1) is None
    assert await memory.of_action("go") == []
    assert (await memory.near(1, 1, 1)).records == ()
    assert await memory.touch("short") == 0
    with pytest.raises(NotFound):
        await memory.update("short", importance=1)
    execute, stem = orc.services.store.execute, memory._scope.keys.key("stm")
    assert await execute("HEXISTS", f"{stem}:hdr", "short")
    await memory.store(state(2))
    for part in ("hdr", "rec"):
        assert not await execute("HEXISTS", f"{stem}:{part}", "short")
    for part in ("exp", "time", "imp", "kind:state", "act:go", "subj:bob", "cell:0_0"):
        assert await execute("ZSCORE", f"{stem}:{part}", "short") is None


async def test_caps(settings: Settings) -> None:
    """The oldest beyond the cap move to the intermediate tier, which refuses more than its own; so do the bytes."""
    limits = settings.memory.model_copy(update={"max_stm_records": 3, "max_im_records": 2, "max_bytes": 1024})
    async with Orchestrator(settings=settings.model_copy(update={"memory": limits})) as orc:
        memory = orc.memory("ed")
        for step in range(5):
            await memory.store(state(step, step))
        assert [(each.content, each.tier) for each in await memory.history()] == [
            (0, "im"), (1, "im"), (2, "stm"), (3, "stm"), (4, "stm"),
        ]  # fmt: skip
        with pytest.raises(MemoryFull, match=r"memory\.max_im_records = 2; nothing was stored") as full:
            await memory.store(state(9))
        assert full.value.what == "records"
        newest = await memory.at()
        assert newest is not None
        with pytest.raises(MemoryFull, match=r"memory\.max_bytes"):
            await memory.update(newest.id, content="x" * 1000)
        await memory.update(newest.id, content="x" * 500)
        assert len(await memory.recent()) == 5


async def test_an_attempt_and_its_successor(team: LocalTeam) -> None:
    """Changes present the lock of the attempt; after the task was taken over, none of them changes anything."""
    agent = Agent("ed")
    taken, heard = anyio.Event(), list[str]()

    @agent.skill
    async def work(ctx: TaskContext) -> None:
        await ctx.memory.store(state(1, "first", id="x"))
        held = await ctx._resources.locks.execution.agent.proof()
        generation = int(held.value.split(":")[2]) + 1
        keys = ScopeKeys(team.services.keys.prefix, "agent", "ed")
        call = scripts.claim(
            keys, lock=held.lock, task=ctx.task_id, generation=str(generation), nonce=new_nonce(), ttl_ms=60_000
        )
        assert (await team.services.store.call(call)).status == "taken"
        memory = ctx.memory
        for change in (
            memory.store(state(2, "late")), memory.store_many([state(2)]), memory.update("x", content="late"),
            memory.touch("x"), memory.delete("x"),
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
    assert len(heard) == 5
    memory = team.orc.memory("ed")
    assert [each.content for each in await memory.recent()] == ["first"]
    assert await memory.accesses("x") == {}


async def test_under_a_lease(orc: Orchestrator, memory: Memory) -> None:
    """A program that holds a lock presents it, and is refused after its loss; a lock of another scope is no right."""

    async def lose() -> None:
        async with orc.locks("agent:ed").hold("memory", ttl=30) as lease:
            guarded = memory.under(lease)
            await guarded.store(state(1))
            await orc.services.store.execute("DEL", memory._scope.keys.key("lock:memory"))
            await guarded.store(state(2))

    with pytest.raises(LockLost):
        await lose()
    async with orc.locks("agent:bo").hold("memory") as lease:
        with pytest.raises(InvalidInput, match="guards its own scope alone"):
            await memory.under(lease).store(state(2))
    assert len(await memory.recent()) == 1


async def test_an_exclusive_owner_keeps_changes_out(orc: Orchestrator, memory: Memory) -> None:
    """While a task holds the agent alone, a change waits, and is refused in the end; reads go on."""
    await memory.store(state(1))
    await orc.services.store.execute("SET", memory._scope.keys.key("exec"), "1:t:1:0", "EX", 100)
    impatient = Memory(memory._scope, waiter=memory._writer.waiter, wait_s=0.05)
    with pytest.raises(Occupied):
        await impatient.store(state(2))
    assert len(await memory.recent()) == 1


WRONG: list[dict[str, Any]] = [
    {"step": 1.5},
    {"step": 2**41},
    {"step": True},
    {"kind": ""},
    {"kind": "k" * 257},
    {"id": ""},
    {"id": "a\n"},
    {"importance": float("nan")},
    {"importance": "high"},
    {"position": (1,)},
    {"position": (1, float("inf"))},
    {"version": 0},
    {"version": 2**53},
    {"ttl": -1},
    {"content": object()},
    {"content": "x" * 70_000},
    {"meta": {"x": object()}},
    {"action": ""},
    {"subject": ""},
]


async def test_refused_by_validation(memory: Memory) -> None:
    """What cannot be kept is refused, and nothing is stored."""
    for wrong in WRONG:
        with pytest.raises(InvalidInput):
            await memory.store(Record(**{"step": 1, "kind": "k", "content": 1, **wrong}))
    assert await memory.recent() == []


async def test_wrong_reads(memory: Memory) -> None:
    """Positions above 0, limits, tiers and orders that there are not."""
    for read in (
        memory.at(1), memory.recent(0), memory.recent(1001), memory.get(*["x"] * 501), memory.changes(0),
        memory.query(MemoryQuery(tiers=())), memory.query(MemoryQuery(order="up")),  # type: ignore[arg-type]
        memory.query(MemoryQuery(since=0.5)), memory.near(0, 0, -1), memory.store(state(1), tier="ltm"),  # type: ignore[arg-type]
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            await read


async def test_fenced_ten_thousand_times(orc: Orchestrator, memory: Memory) -> None:
    """A paused holder whose lock has another owner changes 0 of 10,000; before that, the same change is made."""
    store, scope = orc.services.store, memory._scope
    limits = pack_limits(scope.settings.memory)
    lock = scope.keys.key("lock:memory")
    await store.execute("SET", lock, "mine", "EX", 100)

    def call(number: int) -> Call[MemoryReply]:
        change = MemoryChange(scope.keys, CallerRow(f"o{number}", "lock:memory", "mine", "ed"), limits)
        return memory_scripts.store(change, tier="stm", rows=[record("kept" if number < 0 else f"r{number}")])

    assert (await store.call(call(-1))).status == "ok"
    await store.execute("SET", lock, "another", "EX", 100)
    replies = []
    for start in range(0, 10_000, 500):
        replies += await store.call_all([call(number) for number in range(start, start + 500)])
    assert {(reply.status, *reply.rest) for reply in replies} == {("fenced", b"another")}
    assert len(replies) == 10_000
    assert [each.id for each in await memory.recent()] == ["kept"]


def test_the_blocking_client(settings: Settings) -> None:
    """`orchestrator.sync` stores and recalls."""
    with sync.Orchestrator(settings=settings) as orc:
        memory = orc.memory("ed")
        assert memory.store(state(1, "x")).version == 1
        assert [each.content for each in memory.history()] == ["x"]
        assert [each.content for each in memory.query(MemoryQuery())] == ["x"]


async def test_expired_records_hide_none(orc: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Short reads go on behind expired records that no call has removed yet; a query says that it has stopped."""
    monkeypatch.setattr(queries, "MAX_SCANNED", 50)
    memory = orc.memory("ed")
    await memory.store_many([state(step, step) for step in range(3)])
    await memory.store_many([Record(step=9 + n, kind="state", content=n, id=f"e{n}", ttl=0.3) for n in range(200)])
    with anyio.fail_after(TIMEOUT_S):
        while any(await memory.get("e0", "e199")):  # noqa: ASYNC110 - Redis tells no end of a record
            await anyio.sleep(0.02)
    found = await memory.query(MemoryQuery(limit=3))
    assert not found.complete
    assert [each.content for each in await memory.recent(5)] == [2, 1, 0]
    assert [each.content for each in await memory.of_kind("state", limit=2)] == [2, 1]
    position = await memory.at(-1)
    assert position is not None
    assert position.content == 1
    assert len(await memory.changes(2)) == 1
