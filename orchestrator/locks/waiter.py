"""Waits for locks: blocks on the lock's wake list, where Redis serves waiters in order of arrival.

A waiter uses a connection of its own. It also polls over the shared connection without losing its place, because no
wake-up comes when the holder dies or when the token goes to a waiter that died.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import anyio

from orchestrator.core.errors import ServerUnavailable, StoreError
from orchestrator.core.log import get_logger
from orchestrator.locks import scripts
from orchestrator.locks.model import DropReply, TakeReply, TakeStatus
from orchestrator.store.keys import PoolKeys
from orchestrator.tracing.active import active

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    from orchestrator.store.calls import Call
    from orchestrator.store.keys import ScopeKeys
    from orchestrator.store.router import Router
    from orchestrator.store.store import Store
    from orchestrator.tracing.spans import Tracing

POLL_EVERY_S: Final = 1.0
BLOCK_S: Final = 30.0
IDLE_LINKS: Final = 8
RELEASE_TIMEOUT_S: Final = 2.0
"""Time for a cancelled caller to release its lock; later the lock lapses."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TakeResult:
    """Result of a wait.

    Attributes:
        sent_s: monotonic time at which the last call was sent; the lock's lifetime counts from it.
    """

    reply: TakeReply
    sent_s: float


class MakeTakeCall(Protocol):
    """Makes the call that tries to take the lock."""

    def __call__(self, wait_ms: int, *, woken: bool) -> Call[TakeReply]:
        """Return the call, from the ms that the caller still waits and whether it holds the wake token."""


MakeWakeCall: TypeAlias = "Callable[[PoolKeys, str], Call[bool]]"
"""Makes the call that wakes a task of a pool, which waits in the line of a lock; returns False if the task is gone."""


class LockWaiter:
    """Takes and releases locks, and keeps idle connections for the next waiters."""

    def __init__(self, store: Store, make_wake_call: MakeWakeCall) -> None:
        self._store, self._make_wake_call = store, make_wake_call
        self._idle: list[Router] = []

    def get(
        self,
        keys: ScopeKeys,
        lock: str,
        *,
        nonce: str,
        ttl_ms: int,
        wait_s: float,
        make_call: MakeTakeCall,
    ) -> Coroutine[Any, Any, TakeResult]:
        """Take a lock, and wait for it up to `wait_s`. A cancelled caller leaves neither lock nor waiter behind.

        A caller that only asks for a free lock (`scripts.enter`) calls `release` after its change.

        Args:
            keys: the scope.
            lock: suffix of the lock's key.
            nonce: identifies this try.
            ttl_ms: lifetime of the lock; a returned lock has at least half of it left.
            wait_s: time to wait; 0 asks once.
            make_call: makes the call.

        Raises:
            StoreError: Redis did not reply.
        """
        getting = self._get_or_leave(keys, lock, nonce=nonce, ttl_ms=ttl_ms, wait_s=wait_s, make_call=make_call)
        tracing = active()
        return getting if tracing is None else _traced(tracing, keys.key(lock), getting)

    async def _get_or_leave(
        self, keys: ScopeKeys, lock: str, *, nonce: str, ttl_ms: int, wait_s: float, make_call: MakeTakeCall
    ) -> TakeResult:
        try:
            got = await self._get(keys, lock, ttl_ms=ttl_ms, wait_s=wait_s, make_call=make_call)
        except BaseException:
            await self.release(keys, lock, nonce)
            raise
        if got.reply.status not in {TakeStatus.TAKEN, TakeStatus.FREE} and wait_s:
            await self.release(keys, lock, nonce)
        return got

    async def release(self, keys: ScopeKeys, lock: str, nonce: str) -> bool | None:
        """Release a lock, or stop waiting for it, even when cancelled.

        Returns:
            True if the lock was held, or None if a lost reply leaves that unknown.
        """
        call = scripts.drop(keys, rows=[(lock, nonce)])
        try:
            (dropped,) = await self._store.call(call)
            if dropped.wake:
                await self.wake(keys, lock, dropped.wake)
        except ServerUnavailable:
            return await self._retry_release(keys, lock, call)
        except StoreError as failure:
            _log.warning("lock_release_failed", lock=lock, error=str(failure))
            return None
        except BaseException:
            # Cancelled meanwhile: the call may not have arrived, so send it once more.
            await self._retry_release(keys, lock, call)
            raise
        return dropped.released

    async def _retry_release(self, keys: ScopeKeys, lock: str, call: Call[list[DropReply]]) -> bool | None:
        """Send a release again. The first one may have arrived, so not finding the lock proves nothing."""
        with anyio.move_on_after(RELEASE_TIMEOUT_S, shield=True):
            try:
                (dropped,) = await self._store.call(call, retry_for_s=RELEASE_TIMEOUT_S)
                await self.wake(keys, lock, dropped.wake)
            except StoreError as failure:
                _log.warning("lock_release_failed", lock=lock, error=str(failure))
                return None
            return dropped.released or None
        _log.warning("lock_release_failed", lock=lock, error="no answer in time")
        return None

    async def wake(self, keys: ScopeKeys, lock: str, member: str) -> None:
        """Wake the task that a lock is kept for; if it no longer waits, the next one in the line.

        Without a wake-up the task looks again when it is due (protocol rule 19).

        Args:
            keys: the scope.
            lock: suffix of the lock's key.
            member: the task as `TASK:POOL`; empty: none.

        Raises:
            StoreError: Redis did not reply.
        """
        while member:
            task, _, pool = member.partition(":")
            if await self._store.call(self._make_wake_call(PoolKeys(keys.prefix, pool), task)):
                return
            (dropped,) = await self._store.call(scripts.drop(keys, rows=[(lock, member)]))
            member = dropped.wake

    async def _get(
        self, keys: ScopeKeys, lock: str, *, ttl_ms: int, wait_s: float, make_call: MakeTakeCall
    ) -> TakeResult:
        until_s = time.monotonic() + wait_s
        got = await self._try_take(make_call, until_s, woken=False, ttl_ms=ttl_ms)
        if got.reply.wake:
            await self.wake(keys, lock, got.reply.wake)
        if got.reply.status is not TakeStatus.HELD or wait_s <= 0:
            return got
        async with self._wake_read(keys.wake(lock), until_s) as wake_read:
            while (left_s := until_s - time.monotonic()) > 0:
                # Ask again when the lock lapses without a renewal.
                lapses_s = max(0.01, got.reply.left_ms / 1000 + 0.005)
                woken = await wake_read.wait(min(left_s, POLL_EVERY_S, lapses_s))
                got = await self._try_take(make_call, until_s, woken=woken, ttl_ms=ttl_ms)
                if got.reply.wake:
                    await self.wake(keys, lock, got.reply.wake)
                if got.reply.status is not TakeStatus.HELD:
                    break
        return got

    async def _try_take(self, make_call: MakeTakeCall, until_s: float, *, woken: bool, ttl_ms: int) -> TakeResult:
        while True:
            sent_s = time.monotonic()
            left_s = max(0.0, until_s - sent_s)
            taken = await self._store.call(make_call(round(left_s * 1000), woken=woken), retry_for_s=left_s)
            if taken.status is not TakeStatus.TAKEN or time.monotonic() - sent_s < ttl_ms / 2000:
                return TakeResult(taken, sent_s)
            # The reply came so late that little is left of the lifetime; the same call restores it.

    @asynccontextmanager
    async def _wake_read(self, wake_key: str, until_s: float) -> AsyncIterator[_WakeRead]:
        link = self._idle.pop() if self._idle else self._store.blocking_link(BLOCK_S, name="wait")
        wake_read = _WakeRead(link, wake_key, until_s)
        try:
            yield wake_read
        finally:
            if wake_read.free and len(self._idle) < IDLE_LINKS:
                self._idle.append(link)
            else:
                wake_read.forget()
                await link.close()

    async def run(self) -> None:
        """Close the idle connections when cancelled."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await self.close()

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._idle.pop().close()


async def _traced(tracing: Tracing, key: str, getting: Coroutine[Any, Any, TakeResult]) -> TakeResult:
    with tracing.lock(key) as span:
        got = await getting
        span.note(acquired=got.reply.status in {TakeStatus.TAKEN, TakeStatus.FREE})
        return got


class _WakeRead:
    """A blocking read of a wake list."""

    def __init__(self, link: Router, wake_key: str, until_s: float) -> None:
        self._link, self._wake_key, self._until_s = link, wake_key, until_s
        self._read: asyncio.Future[Any] | None = None

    @property
    def free(self) -> bool:
        """True if no read is in progress."""
        return self._read is None

    async def wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the wake token, and return whether it came."""
        if self._read is None:
            left_s = max(0.01, min(BLOCK_S, self._until_s - time.monotonic()))
            try:
                self._read = await self._link.begin("BLPOP", self._wake_key, f"{left_s:.3f}")
            except StoreError:
                await anyio.sleep(min(seconds, 0.1))
                return False
        await asyncio.wait([self._read], timeout=seconds)
        if not self._read.done():
            return False
        read, self._read = self._read, None
        if read.exception() is not None or isinstance(read.result()[0], Exception):
            await anyio.sleep(min(seconds, 0.1))
            return False
        return read.result()[0] is not None

    def forget(self) -> None:
        """Cancel the read that is in progress."""
        if self._read is not None:
            self._read.cancel()
