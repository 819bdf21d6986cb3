"""Caps of the bytes of queues: what a refused submit says, and the recount by a scan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from orchestrator import Orchestrator, QueueFull, Submission
from orchestrator.repair.scan import KeyLifetimes, PoolScan
from orchestrator.tasks.queries import bytes_by_queue
from orchestrator.views.queues import list_queues
from orchestrator.views.status import read_status

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.core.settings import Settings

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


async def test_a_status_of_many_queues(orc: Orchestrator) -> None:
    """It has the longest queues and says how many there are."""
    await orc.submit_many([Submission(f"s{number}") for number in range(60)])
    await orc.submit_many([Submission("s50") for _ in range(3)])
    found = await read_status(orc.services, limit=20)
    assert (len(found.queues), found.totals.queues, found.queues[0].queue) == (20, 60, "skill:s50")
