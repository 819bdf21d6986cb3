"""Caps of the bytes of queues: what a refused submit says, and the recount by a scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator import Orchestrator, QueueFull, Submission
from orchestrator.core.formats import Feature, Floor
from orchestrator.repair import queue_bytes
from orchestrator.repair.queue_bytes import QueueBytes
from orchestrator.repair.scan import KeyLifetimes, PoolScan
from orchestrator.tasks.queries import bytes_by_queue
from orchestrator.views.queues import list_queues
from orchestrator.views.status import read_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.core.settings import Settings

pytestmark = pytest.mark.roles(client="operator")
"""A client may not set the floor of an empty pool, and beside older programs no cap of bytes holds."""

ARGS = {"text": "x" * 100_000}


@pytest.fixture
async def orc(settings: Settings) -> AsyncIterator[Orchestrator]:
    """A client."""
    async with Orchestrator(settings=settings) as client:
        yield client


async def scan(orc: Orchestrator) -> None:
    """Scan and repair once."""
    services = orc.services
    async for _ in PoolScan(services.store, KeyLifetimes.of(services.settings), repair=True).steps():
        pass


@pytest.mark.every_server
@pytest.mark.parametrize("settings", [{"queue__max_queue_bytes": 250_000}], indirect=True)
async def test_a_queue_without_room(orc: Orchestrator) -> None:
    """The error says how full the queue is and what to do; the views show the same bytes."""
    first = await orc.submit("a", ARGS)
    await orc.submit("a", ARGS)
    with pytest.raises(
        QueueFull, match=r"queue skill:a that wait hold 200\d\d\d of at most 250000 bytes.* raise queue"
    ) as refused:
        await orc.submit("a", ARGS)
    await orc.submit("b", ARGS)
    held = refused.value.held_bytes
    (one, other) = (await list_queues(orc.services)).queues
    assert (one.bytes, other.bytes) == (held, held and held // 2)
    assert (await read_status(orc.services)).waiting_bytes == one.bytes + other.bytes
    await first.cancel()
    await orc.submit("a", ARGS)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"queue__max_pool_bytes": 150_000}, r"tasks of the pool that wait .* raise queue\.max_pool_bytes"),
        ({"queue__max_queues": 1}, r"maximum of 1 queues .* raise queue\.max_queues"),
    ],
    indirect=["settings"],
)
async def test_a_pool_without_room(orc: Orchestrator, text: str) -> None:
    """The caps of the pool are named with their settings."""
    await orc.submit("a", ARGS)
    with pytest.raises(QueueFull, match=text):
        await orc.submit("b", ARGS)


async def test_a_scan_corrects(orc: Orchestrator) -> None:
    """A scan corrects numbers that have drifted in either direction, and leaves right ones alone."""
    for skill in ("a", "b", "c"):
        await orc.submit(skill, ARGS)
    store = orc.services.store
    right = await bytes_by_queue(store)
    assert right["*"] == 3 * right["skill:a"]
    await store.execute("HSET", store.keys.queue_bytes, "skill:a", 5, "skill:b", 10**9, "skill:gone", 7, "*", 1)
    await scan(orc)
    assert await bytes_by_queue(store) == right
    await scan(orc)
    assert await bytes_by_queue(store) == right


async def test_a_scan_corrects_the_pool_alone(orc: Orchestrator) -> None:
    """A number of the pool that is not the sum of its queues would refuse tasks of all queues for ever."""
    await orc.submit("a", ARGS)
    store = orc.services.store
    right = await bytes_by_queue(store)
    await store.execute("HSET", store.keys.queue_bytes, "*", 10**14)
    with pytest.raises(QueueFull):
        await orc.submit("b", ARGS)
    await scan(orc)
    assert await bytes_by_queue(store) == right
    await orc.submit("b", ARGS)


async def test_a_scan_that_begins_again_counts_once(orc: Orchestrator) -> None:
    """After a restart of Redis a scan sees all records again."""
    ids = [(await orc.submit("a", ARGS)).id.encode() for _ in range(30)]
    store = orc.services.store
    right = await bytes_by_queue(store)
    recount = QueueBytes(store)
    await recount.look()
    await recount.add(ids)
    recount.begin()
    await recount.look()
    await recount.add(ids)
    assert await recount.correct() == {}
    await recount.add(ids)  # the twin
    assert await recount.correct() == {b"skill:a": right["skill:a"]}


async def test_a_task_comes_in_the_place_of_another(orc: Orchestrator) -> None:
    """A scan that has counted both adds nothing, though it found the same number at each look."""
    store, first = orc.services.store, await orc.submit("a", ARGS)
    recount = QueueBytes(store)
    await recount.look()
    await recount.add([first.id.encode()])
    await first.cancel()
    second = await orc.submit("a", ARGS)
    right = await bytes_by_queue(store)
    await recount.look()
    await recount.add([second.id.encode()])
    assert await recount.correct() == {}
    assert await bytes_by_queue(store) == right


async def test_a_scan_looks_while_it_rests(orc: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan spread over minutes sees a queue that was full only meanwhile, and does not take its tasks for a drift."""
    monkeypatch.setattr(queue_bytes, "LOOK_EVERY_S", 0.0)
    recount = QueueBytes(orc.services.store)
    await recount.look()
    handles = [await orc.submit("a", ARGS) for _ in range(30)]
    await recount.look()
    await recount.add([handle.id.encode() for handle in handles])
    for handle in handles:
        await handle.cancel()
    assert await recount.correct() == {}


@pytest.mark.parametrize("kind", ["string", "list"])
async def test_a_scan_with_a_key_of_another_type(orc: Orchestrator, kind: str) -> None:
    """It ends, and reports the key."""
    await orc.submit("a", ARGS)
    store = orc.services.store
    await store.execute("DEL", store.keys.queue_bytes)
    await store.execute("SET" if kind == "string" else "RPUSH", store.keys.queue_bytes, "not ours")
    await scan(orc)


@pytest.mark.parametrize("settings", [{"queue__max_queue_bytes": 250_000}], indirect=True)
async def test_older_programs_fill_no_queue(orc: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs of an older version assign tasks and do not subtract their bytes: no submit is refused for that."""
    monkeypatch.setattr(Floor, "admits", lambda _, feature: feature is not Feature.BYTES_CAPPED)
    for _ in range(4):
        await orc.submit("a", ARGS)
    monkeypatch.undo()
    with pytest.raises(QueueFull):
        await orc.submit("a", ARGS)


async def test_a_status_of_many_queues(orc: Orchestrator) -> None:
    """It has the longest queues and says how many there are."""
    await orc.submit_many([Submission(f"s{number}") for number in range(60)])
    await orc.submit_many([Submission("s50") for _ in range(3)])
    found = await read_status(orc.services, limit=20)
    assert (len(found.queues), found.totals.queues, found.queues[0].queue) == (20, 60, "skill:s50")
