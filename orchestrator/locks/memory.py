"""Serializes writes to a user-supplied memory backend with a named lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.durations import Duration
    from orchestrator.locks.named import Lease, Locks

Item = TypeVar("Item")


class MemoryBackend(Protocol[Item]):
    """Storage that `LockedMemory` guards, in Redis or elsewhere.

    A writer that was paused for longer than its lock lasts may write after another writer. So every write receives the
    lease, and the storage must refuse a `lease.fence` lower than the highest one it has seen.
    """

    async def save(self, items: Sequence[Item], /, *, lease: Lease) -> None:
        """Store items, all or none."""

    async def load(self, query: str = "", /) -> Sequence[Item]:
        """Read the items that match a query, or all."""

    async def search(self, query: str, k: int, /) -> Sequence[Any]:
        """Find the `k` best matches of a query."""

    async def clear(self, *, lease: Lease) -> None:
        """Delete all items."""


class LockedMemory(Generic[Item]):
    """A memory whose writers hold a lock. Readers do not wait, so every write must be atomic for them.

    For state in Redis use a workspace instead; its changes need no lock.

    Args:
        backend: storage of the items.
        locks: locks of the session or agent that the memory belongs to: `orc.locks("session:101")`, `ctx.locks`.
        name: name of the lock; all writers of one memory use the same.
        ttl: seconds or timedelta until the lock of a dead writer lapses.
        wait: seconds or timedelta that a writer waits for the lock.
    """

    def __init__(
        self,
        backend: MemoryBackend[Item],
        locks: Locks,
        name: str = "memory",
        *,
        ttl: Duration | None = None,
        wait: Duration | None = None,
    ) -> None:
        self._backend, self._locks, self._name, self._ttl, self._wait = backend, locks, name, ttl, wait

    async def save(self, items: Sequence[Item]) -> None:
        """Store items under the lock, in one call of the backend.

        Raises:
            LockBusy: the lock was not free in time; nothing was stored.
            LockLost: the lock was lost meanwhile; the fence protects what later writers stored.
        """
        async with self._locks.hold(self._name, ttl=self._ttl, wait=self._wait) as lease:
            await self._backend.save(items, lease=lease)

    async def load(self, query: str = "") -> Sequence[Item]:
        """Read the items that match a query, or all, without the lock."""
        return await self._backend.load(query)

    async def search(self, query: str, k: int = 5) -> Sequence[Any]:
        """Find the `k` best matches of a query, without the lock."""
        return await self._backend.search(query, k)

    async def clear(self) -> None:
        """Delete all items, under the lock.

        Raises:
            LockBusy, LockLost: see `save`.
        """
        async with self._locks.hold(self._name, ttl=self._ttl, wait=self._wait) as lease:
            await self._backend.clear(lease=lease)
