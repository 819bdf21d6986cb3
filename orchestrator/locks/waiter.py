"""Waiting for a lock: blocked on its wake list, where the server serves in order of arrival, with a look now and then.

A waiter has a connection for itself while it waits. The look, over the shared connection and without giving up the
place in the line, finds what nobody rings for: a holder that died, a token that went to a waiter that died.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from orchestrator.core.errors import ServerUnavailable, StoreError
from orchestrator.core.log import get_logger
from orchestrator.locks import scripts
from orchestrator.locks.model import TakeReply, TakeStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.store.calls import Call
    from orchestrator.store.keys import ScopeKeys
    from orchestrator.store.links import Link
    from orchestrator.store.store import Store

POLL_EVERY_S: Final = 1.0
BLOCK_S: Final = 30.0
IDLE_LINKS: Final = 8
RELEASE_TIMEOUT_S: Final = 2.0
"""So long a caller that gives up tries to tell; what it leaves behind lapses by itself."""

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TakeResult:
    """The end of a wait.

    Attributes:
        sent_s: when the last answer was asked for, by the monotonic clock: a lease counts from there.
    """

    reply: TakeReply
    sent_s: float


class MakeTakeCall(Protocol):
    """Makes the call that tries to get a lock."""

    def __call__(self, wait_ms: int, *, woken: bool) -> Call[TakeReply]:
        """From the ms that the caller still waits, and whether it has the token."""


class LockWaiter:
    """Gets locks, and keeps the connections of those who waited for the next."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._idle: list[Link] = []

    async def get(
        self,
        keys: ScopeKeys,
        lock: str,
        *,
        nonce: str,
        ttl_ms: int,
        wait_s: float,
        make_call: MakeTakeCall,
    ) -> TakeResult:
        """Take a lock, and wait for it if need be. Whoever is cancelled here leaves nothing behind.

        Args:
            keys: of the scope.
            lock: its suffix.
            nonce: of this try.
            ttl_ms: a lock that was got is at least half as fresh.
            wait_s: at most so long.
            make_call: makes the call.

        Raises:
            StoreError: Redis did not answer.
        """
        try:
            got = await self._get(keys, lock, ttl_ms=ttl_ms, wait_s=wait_s, make_call=make_call)
        except BaseException:
            await self.release(keys, lock, nonce)
            raise
        if got.reply.status is not TakeStatus.TAKEN and wait_s:
            await self.release(keys, lock, nonce)
        return got

    async def release(self, keys: ScopeKeys, lock: str, nonce: str) -> bool | None:
        """Give up a lock, or the wait for it, even when cancelled.

        Returns:
            Whether it was held; None: nobody can tell, because an answer was lost.
        """
        call = scripts.drop(keys, rows=[(lock, nonce)])
        try:
            return (await self._store.call(call))[0]
        except ServerUnavailable:
            return await self._retry_release(call)
        except StoreError as failure:
            _log.warning("lock_release_failed", lock=lock, error=str(failure))
            return None
        except BaseException:
            # Cancelled on the way: to be out of it is worth a moment all the same.
            await self._retry_release(call)
            raise

    async def _retry_release(self, call: Call[list[bool]]) -> bool | None:
        """Repeat a drop. The one before may have arrived: that this one finds nothing says nothing."""
        with anyio.move_on_after(RELEASE_TIMEOUT_S, shield=True):
            try:
                return (await self._store.call(call, retry_for_s=RELEASE_TIMEOUT_S))[0] or None
            except StoreError as failure:
                _log.warning("lock_release_failed", error=str(failure))
                return None
        _log.warning("lock_release_failed", error="no answer in time")
        return None

    async def _get(
        self, keys: ScopeKeys, lock: str, *, ttl_ms: int, wait_s: float, make_call: MakeTakeCall
    ) -> TakeResult:
        until_s = time.monotonic() + wait_s
        got = await self._try_take(make_call, until_s, woken=False, ttl_ms=ttl_ms)
        if got.reply.status is not TakeStatus.HELD or wait_s <= 0:
            return got
        async with self._wake_read(keys.wake(lock), until_s) as wake_read:
            while (left_s := until_s - time.monotonic()) > 0:
                # A lock that nobody renews is looked at when it lapses.
                lapses_s = max(0.01, got.reply.left_ms / 1000 + 0.005)
                woken = await wake_read.wait(min(left_s, POLL_EVERY_S, lapses_s))
                got = await self._try_take(make_call, until_s, woken=woken, ttl_ms=ttl_ms)
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
            # The answer took so long that little would be left: the same again gives the whole time.

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
        """Close the idle connections in the end: when this is cancelled."""
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await self.close()

    async def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            await self._idle.pop().close()


class _WakeRead:
    """One waiter's place: a read of the wake list that is under way."""

    def __init__(self, link: Link, wake_key: str, until_s: float) -> None:
        self._link, self._wake_key, self._until_s = link, wake_key, until_s
        self._read: asyncio.Future[Any] | None = None

    @property
    def free(self) -> bool:
        """Whether no read is under way."""
        return self._read is None

    async def wait(self, seconds: float) -> bool:
        """Wait at most so long; True: we were given the token."""
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
        if read.exception() is not None:
            await anyio.sleep(min(seconds, 0.1))
            return False
        return isinstance(read.result()[0], list)

    def forget(self) -> None:
        """Let nobody ask what became of the read."""
        if self._read is not None:
            self._read.cancel()
