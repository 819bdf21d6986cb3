"""`LockedMemory`: a lock around the writes of any memory that saves, loads, searches and clears."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.core.durations import Duration
    from orchestrator.locks.named import Lease, Locks

Item = TypeVar("Item")


class MemoryBackend(Protocol[Item]):
    """What `LockedMemory` guards: where the items are kept, here or anywhere else.

    A writer may have been paused for longer than its lock lasts, and write when another has written since. So each
    write is handed the lease, and the store itself must refuse a `lease.fence` lower than the highest it has seen.
    """

    async def save(self, items: Sequence[Item], /, *, lease: Lease) -> None:
        """Store items, all or none."""

    async def load(self, query: str = "", /) -> Sequence[Item]:
        """Read."""

    async def search(self, query: str, k: int, /) -> Sequence[Any]:
        """Find the `k` that fit best."""

    async def clear(self, *, lease: Lease) -> None:
        """Forget all."""


class LockedMemory(Generic[Item]):
    """A memory whose writers take turns. Readers do not wait: each write must be one step for them.

    For state in Redis use a workspace in place of this: its changes need no lock.

    Args:
        backend: what keeps the items.
        locks: of the session or agent whose memory it is: `orc.locks("session:101")`, `ctx.locks`.
        name: of the lock; writers of the same memory use the same.
        ttl: seconds or timedelta that the lock outlives a writer that died.
        wait: seconds or timedelta that a writer waits for its turn.
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
        """Store items when it is our turn; what belongs together is saved in one call.

        Raises:
            LockBusy: it was not our turn in time; nothing was stored.
            LockLost: the lock was lost on the way; what the backend has is fenced against later writers.
        """
        async with self._locks.hold(self._name, ttl=self._ttl, wait=self._wait) as lease:
            await self._backend.save(items, lease=lease)

    async def load(self, query: str = "") -> Sequence[Item]:
        """Read; waits for nobody."""
        return await self._backend.load(query)

    async def search(self, query: str, k: int = 5) -> Sequence[Any]:
        """Find the `k` that fit best; waits for nobody."""
        return await self._backend.search(query, k)

    async def clear(self) -> None:
        """Forget all when it is our turn.

        Raises:
            LockBusy, LockLost: see `save`.
        """
        async with self._locks.hold(self._name, ttl=self._ttl, wait=self._wait) as lease:
            await self._backend.clear(lease=lease)
