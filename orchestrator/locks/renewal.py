"""Renews the locks of this process, and reports lost locks to their owners.

In a worker the heartbeat thread renews the locks, so that a blocked event loop does not lose them. In a client the
`run` task renews them. In both, a timer in the event loop ends an ownership that was not renewed in time.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import anyio

from orchestrator.core.errors import StoreError
from orchestrator.core.log import get_logger
from orchestrator.locks import scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from orchestrator.locks.model import LockProof
    from orchestrator.store.calls import Call
    from orchestrator.store.keys import ScopeKeys
    from orchestrator.store.store import Store

RENEWALS: Final = 3
"""Renewals per lifetime, so that one lost reply does not cost the lock."""
LAST_MARGIN_S: Final = 1.0

_log = get_logger(__name__)


class RenewedLock:
    """A lock that is renewed until its owner removes it.

    Attributes:
        deadline_s: monotonic time from which another owner may have it; counted from the send time of the last renewal.
        is_wanted: returns whether to renew now; called from the renewing thread.

    `on_lost` is called in the event loop with the lock's value, or with None if the lock was not renewed in time.
    """

    __slots__ = ("_loop", "_on_lost", "_timer", "_watched", "deadline_s", "due_s", "is_wanted", "proof", "ttl_s")

    def __init__(
        self,
        proof: LockProof,
        *,
        ttl_s: float,
        sent_s: float,
        on_lost: Callable[[str | None], None],
        watched: bool = True,
        is_wanted: Callable[[], bool] | None = None,
    ) -> None:
        self.proof, self.ttl_s = proof, ttl_s
        self.is_wanted = is_wanted
        self._on_lost, self._watched = on_lost, watched
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self.set_renewed(sent_s)
        if watched:
            self._watch()

    def lapsed(self, now_s: float) -> bool:
        """Return whether a renewal would take the lock anew. Always False for a watched lock, which ends earlier."""
        return not self._watched and now_s >= self.deadline_s

    @property
    def margin_s(self) -> float:
        """Time before the deadline at which the owner is told that the lock is lost."""
        return min(self.ttl_s / 10, LAST_MARGIN_S)

    def set_renewed(self, sent_s: float) -> None:
        """Restart the lifetime at the send time of a renewal that succeeded. Thread-safe."""
        self.deadline_s = sent_s + self.ttl_s
        self.due_s = sent_s + self.ttl_s / RENEWALS

    def _watch(self) -> None:
        left_s = self.deadline_s - self.margin_s - time.monotonic()
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._watch)
        else:
            self._timer = None
            self._on_lost(None)

    def notify_lost(self, present: str) -> None:
        """Report a lost lock and its new value to the owner, in its event loop. Thread-safe."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_lost, present)

    def stop(self) -> None:
        """Stop the timer; called in the event loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class LockRenewer:
    """Renews the locks of one process.

    Attributes:
        trigger: called in the event loop with the time of the next renewal, if that is before `wakes_s`.
        wakes_s: monotonic time of the renewing side's next pass.
    """

    def __init__(self) -> None:
        self._locks: dict[int, RenewedLock] = {}
        self._numbers = itertools.count()
        self._mutex = threading.Lock()
        self._triggered = anyio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self.trigger: Callable[[float], None] = self._wake_at
        self.wakes_s = math.inf

    def add(self, lock: RenewedLock) -> int:
        """Renew a lock from now on, and return a number for `remove`."""
        number = next(self._numbers)
        with self._mutex:
            self._locks[number] = lock
        if lock.due_s < self.wakes_s:
            self.trigger(lock.due_s)
        return number

    def _wake_at(self, due_s: float) -> None:
        # A timer: most locks are released long before their first renewal, and cause no pass.
        self.wakes_s = due_s
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s - time.monotonic()), self._triggered.set)

    def remove(self, number: int) -> None:
        """Stop renewing a lock. A loss may still be reported once."""
        with self._mutex:
            lock = self._locks.pop(number, None)
        if lock is not None:
            lock.stop()

    def due_in_s(self) -> float | None:
        """Return the seconds until the next renewal, or None if there are no locks."""
        now_s = time.monotonic()
        with self._mutex:
            due_s = min((lock.due_s for lock in self._locks.values() if not lock.lapsed(now_s)), default=None)
        return None if due_s is None else max(0.0, due_s - now_s)

    def shortest_s(self) -> float:
        """Return the shortest lifetime of a lock. Thread-safe."""
        with self._mutex:
            return min((lock.ttl_s for lock in self._locks.values()), default=math.inf)

    def batches(
        self, *, early_s: float = 0.0, lapsed: bool = False
    ) -> list[tuple[Call[list[tuple[bool, str]]], list[RenewedLock]]]:
        """Return the calls that renew the due locks, one per scope, each with its locks. Thread-safe.

        Args:
            early_s: locks due within this time count as due.
            lapsed: return lapsed execution locks instead; renewing takes them again if they stayed free. Only for
                attempts that Redis has just confirmed as owners of their tasks: a stalled attempt would otherwise get
                its lock back and change shared state after its task ended.
        """
        by_scope: dict[ScopeKeys, list[RenewedLock]] = {}
        now_s = time.monotonic()
        with self._mutex:
            everything = list(self._locks.values())
        for lock in everything:
            if lock.lapsed(now_s) is not lapsed or (not lapsed and lock.due_s > now_s + early_s):
                continue
            if lock.is_wanted is None or lock.is_wanted():
                by_scope.setdefault(lock.proof.keys, []).append(lock)
            else:
                lock.due_s = now_s + lock.ttl_s
        return [
            (
                scripts.renew(
                    keys, rows=[(lock.proof.lock, lock.proof.value, round(lock.ttl_s * 1000)) for lock in group]
                ),
                group,
            )
            for keys, group in by_scope.items()
        ]

    def settle(self, group: Sequence[RenewedLock], answers: Sequence[tuple[bool, str]], sent_s: float) -> None:
        """Apply the replies to one call that was sent at `sent_s`. Thread-safe."""
        for lock, (held, present) in zip(group, answers, strict=True):
            if held:
                lock.set_renewed(sent_s)
            else:
                lock.due_s = lock.deadline_s + lock.ttl_s
                lock.notify_lost(present)

    async def run(self, store: Store) -> None:
        """Renew due locks until cancelled."""
        try:
            while True:
                await self._triggered.wait()
                self._triggered, self.wakes_s = anyio.Event(), math.inf
                batches = self.batches(early_s=0.05)
                async with anyio.create_task_group() as group:
                    for call, locks in batches:
                        group.start_soon(self._renew, store, call, locks)
                if (in_s := self.due_in_s()) is not None:
                    self._wake_at(time.monotonic() + in_s)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def _renew(self, store: Store, call: Call[Any], locks: list[RenewedLock]) -> None:
        sent_s = time.monotonic()
        shortest_s = min(lock.ttl_s for lock in locks)
        with anyio.move_on_after(shortest_s / RENEWALS) as waited:
            try:
                self.settle(locks, await store.call(call), sent_s)
            except StoreError as failure:
                _log.failure("lock_renewal_failed", locks=len(locks), error=failure)
                await anyio.sleep(min(0.1, shortest_s / 20))
        if waited.cancelled_caught:
            _log.warning("lock_renewal_failed", locks=len(locks), error="no answer in time")
