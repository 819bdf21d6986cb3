"""`LockedMemory` over a backend of the user's own: writers take turns, a lapsed one is refused by its fence."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio
import pytest

from orchestrator import LockBusy, LockedMemory, LockLost, Orchestrator
from tests.helpers.waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from orchestrator import Lease, MemoryBackend
    from orchestrator.core.settings import Settings


class Notes:
    """A backend that needs a lock: it reads, waits, and writes all of it back."""

    def __init__(self, *, checks: bool = True) -> None:
        self.items: tuple[str, ...] = ()
        self.checks, self.fence = checks, 0
        self.slow_s = 0.002
        self.refused = 0
        self.left_s = 0.0

    async def save(self, items: Sequence[str], /, *, lease: Lease) -> None:
        """Read, change, write."""
        before = self.items
        await anyio.sleep(self.slow_s)
        self._write((*before, *items), lease)

    async def load(self, query: str = "", /) -> Sequence[str]:
        """Read."""
        return [item for item in self.items if query in item]

    async def search(self, query: str, k: int, /) -> Sequence[str]:
        """Find."""
        return [item for item in self.items if query in item][:k]

    async def clear(self, *, lease: Lease) -> None:
        """Forget."""
        self.left_s = lease.deadline - time.monotonic()
        self._write((), lease)

    def _write(self, items: tuple[str, ...], lease: Lease) -> None:
        if self.checks and lease.fence < self.fence:
            self.refused += 1
            raise PermissionError(f"fence {lease.fence} is lower than {self.fence}")
        self.fence, self.items = max(self.fence, lease.fence), items


@pytest.fixture
async def orc(settings: Settings) -> AsyncIterator[Orchestrator]:
    """A client."""
    async with Orchestrator(settings=settings) as client:
        yield client


async def test_writers_take_turns(orc: Orchestrator) -> None:
    """50 writers at once: every item is kept, in pairs that belong together; without the lock most are lost."""
    backend = Notes()
    typed: MemoryBackend[str] = backend
    memory = LockedMemory(typed, orc.locks("session:s"), wait=20)
    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(memory.save, [f"ask {number}", f"answer {number}"])
    assert len(backend.items) == 100
    assert all(backend.items[i].split()[1] == backend.items[i + 1].split()[1] for i in range(0, 100, 2))
    assert await memory.load("ask 7") == ["ask 7"]
    assert (len(await memory.search("answer", 3)), len(await memory.search("answer"))) == (3, 5)
    await memory.clear()
    assert await memory.load() == []


async def test_the_backend_needs_the_lock(orc: Orchestrator) -> None:
    """Twin: the same writers with a lock each lose writes, so the lock is really needed."""
    backend = Notes(checks=False)
    async with anyio.create_task_group() as group:
        for number in range(20):
            memory = LockedMemory(backend, orc.locks("session:s"), f"lock {number}")
            group.start_soon(memory.save, [f"item {number}"])
    assert len(backend.items) < 20


@pytest.mark.parametrize(("checks", "kept"), [(True, ("new",)), (False, ("old",))])
async def test_lapsed_writer(orc: Orchestrator, *, checks: bool, kept: tuple[str, ...]) -> None:
    """A writer that stood still past its lock is refused by its fence; a backend that does not look is overwritten."""
    backend = Notes(checks=checks)
    locks = orc.locks("session:s")
    old = await locks.try_acquire("memory", ttl=0.1)
    assert old is not None
    await wait_for(lambda: not old.held, "it has lapsed")
    await LockedMemory(backend, locks).save(["new"])
    backend.slow_s, backend_before = 0.0, backend.items
    backend.items = ()
    try:
        await backend.save(["old"], lease=old)
    except PermissionError:
        backend.items = backend_before
    assert backend.items == kept


async def test_a_writer_that_does_not_get_its_turn(orc: Orchestrator) -> None:
    """Nothing is stored, and the error names the holder. One that loses its lock on the way says that."""
    backend = Notes()
    locks = orc.locks("session:s", owner="somebody")
    memory = LockedMemory(backend, locks, ttl=0.6, wait=0.05)
    async with locks.hold("memory"):
        for change in (memory.save(["x"]), memory.clear()):
            with anyio.fail_after(2), pytest.raises(LockBusy, match="is held by somebody"):
                await change
        await memory.load()
    assert backend.items == ()
    await memory.clear()
    assert 0.3 < backend.left_s <= 0.6
    backend.slow_s = 5

    async def take_it_away() -> None:
        async def held() -> bool:
            return await locks.peek("memory") is not None

        await wait_for(held, "it writes")
        seen = await locks.peek("memory")
        assert seen is not None
        await locks.take_away(seen)

    async with anyio.create_task_group() as group:
        group.start_soon(take_it_away)
        with pytest.raises(LockLost):
            await memory.save(["x"])
    assert backend.items == ()
