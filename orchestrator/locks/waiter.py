"""Waits for locks. All waits of a process share the connection for hints, and Redis calls waiters in order of arrival.

A waiter subscribes to a channel of its own, and then asks again, which puts it in the order of the lock. A release
tells the first waiter that listens. No hint comes when the holder dies, or when a process dies that was told, so the
first waiter of each process polls. Where hints are not allowed it polls often, and takes the token of the wake list.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import anyio

from orchestrator.core.errors import ServerRefused, ServerUnavailable, StoreError
from orchestrator.core.log import get_logger
from orchestrator.locks import scripts
from orchestrator.locks.model import DropReply, TakeReply, TakeStatus
from orchestrator.store.keys import PoolKeys
from orchestrator.tracing.active import active

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from orchestrator.store.calls import Call
    from orchestrator.store.keys import ScopeKeys
    from orchestrator.store.shared_hints import SharedHints
    from orchestrator.store.store import Store
    from orchestrator.tracing.spans import Tracing

POLL_EVERY_S: Final = 1.0
"""Pause of the first waiter of a process between two polls of a lock."""
OTHERS_POLL_EVERY_S: Final = 10.0
"""Pause of the others, which move up when the first has its turn."""
DEAF_POLL_EVERY_S: Final = 0.1
"""Pause of the first waiter of a process that may not listen."""
AGAIN_S: Final = 0.1
"""Pause after a connection for hints failed."""
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

    def __call__(self, wait_ms: int, *, woken: bool, listens: bool) -> Call[TakeReply]:
        """Return the call, from the ms that the caller still waits, whether it is its turn, and whether it listens."""


MakeWakeCall: TypeAlias = "Callable[[PoolKeys, str], Call[bool]]"
"""Makes the call that wakes a task of a pool, which waits in the line of a lock; returns False if the task is gone."""


class LockWaiter:
    """Takes and releases locks."""

    def __init__(self, store: Store, make_wake_call: MakeWakeCall) -> None:
        self._store, self._make_wake_call = store, make_wake_call
        self._lines: dict[str, list[_Wait]] = {}
        self._may_listen = True

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
            got = await self._get(keys, lock, nonce=nonce, ttl_ms=ttl_ms, wait_s=wait_s, make_call=make_call)
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
        self, keys: ScopeKeys, lock: str, *, nonce: str, ttl_ms: int, wait_s: float, make_call: MakeTakeCall
    ) -> TakeResult:
        now_s, wake_key = time.monotonic(), keys.wake(lock)
        until_s, got = now_s + wait_s, TakeResult(TakeReply(TakeStatus.HELD, "", 0), now_s)
        # Not behind others of this process, which would still wait if it were free.
        if wait_s <= 0 or wake_key not in self._lines:
            # Without a registration, because a waiter that does not listen yet would miss its turn.
            got = await self._try_take(keys, lock, make_call, until_s, ttl_ms=ttl_ms)
            if got.reply.status is not TakeStatus.HELD or wait_s <= 0:
                return got
        line = self._lines.setdefault(wake_key, [])
        wait = _Wait(line, f"{wake_key}:{nonce}", self._store.hints)
        try:
            polls = False
            while got.reply.status is TakeStatus.HELD and time.monotonic() < until_s:
                if self._may_listen and not wait.listens:
                    await self._listen(wait, until_s)
                    polls = False
                elif polls:
                    # It asks again when the lock lapses without a renewal.
                    lapses_s = max(0.01, got.reply.left_ms / 1000 + 0.005)
                    pause_s = POLL_EVERY_S if wait.listens else DEAF_POLL_EVERY_S
                    await wait.for_turn(until_s, min(pause_s, lapses_s))
                woken = wait.take_call() or (polls and wait.is_first and await self._take_token(wake_key))
                got = await self._try_take(keys, lock, make_call, until_s, woken=woken, wait=wait, ttl_ms=ttl_ms)
                polls = True
        finally:
            wait.end()
            if not line:
                self._lines.pop(wake_key, None)
        return got

    async def _listen(self, wait: _Wait, until_s: float) -> None:
        """Let a wait listen for its turn. One that may not listen polls."""
        # Behind others the time-out of one connection after the other would pass.
        with anyio.move_on_after(until_s - time.monotonic()):
            try:
                await wait.listen()
            except ServerRefused as refusal:
                self._may_listen = False
                _log.warning("hints_refused", error=str(refusal))
            except StoreError:
                await anyio.sleep(AGAIN_S)

    async def _take_token(self, wake_key: str) -> bool:
        """Take the token that a release leaves for waiters that do not listen, and for those of older programs."""
        try:
            return await self._store.execute("RPOP", wake_key) is not None
        except StoreError:
            return False

    async def _try_take(
        self,
        keys: ScopeKeys,
        lock: str,
        make_call: MakeTakeCall,
        until_s: float,
        *,
        woken: bool = False,
        wait: _Wait | None = None,
        ttl_ms: int,
    ) -> TakeResult:
        listens = wait is not None and wait.listens
        while True:
            sent_s = time.monotonic()
            left_s = max(0.0, until_s - sent_s)
            call = make_call(0 if wait is None else round(left_s * 1000), woken=woken, listens=listens)
            taken = await self._store.call(call, retry_for_s=left_s)
            if taken.status is not TakeStatus.TAKEN or time.monotonic() - sent_s < ttl_ms / 2000:
                break
            # The reply came so late that little is left of the lifetime; the same call restores it.
        if taken.wake:
            await self.wake(keys, lock, taken.wake)
        return TakeResult(taken, sent_s)


async def _traced(tracing: Tracing, key: str, getting: Coroutine[Any, Any, TakeResult]) -> TakeResult:
    with tracing.lock(key) as span:
        got = await getting
        span.note(acquired=got.reply.status in {TakeStatus.TAKEN, TakeStatus.FREE})
        return got


class _Wait:
    """A wait for a lock, in the line of its process.

    Attributes:
        listens: a hint will tell that it is its turn.
        called: the hint has come.
    """

    def __init__(self, line: list[_Wait], channel: str, hints: SharedHints) -> None:
        self._line, self._channel, self._hints = line, channel, hints
        self._news = anyio.Event()
        self.listens = self.called = False
        line.append(self)

    @property
    def is_first(self) -> bool:
        """True if no other wait of this process is older."""
        return self._line[0] is self

    async def listen(self) -> None:
        """Listen for the hint.

        Raises:
            StoreError: no answer, or a refusal.
        """
        await self._hints.subscribe([self._channel], self)
        self.listens = True

    def received(self, channel: str, message: str) -> None:  # noqa: ARG002 - the channel is its own
        """Have the turn."""
        self.called = True
        self._news.set()

    def interrupted(self) -> None:
        """Listen again."""
        self.listens = False
        self._news.set()

    def take_call(self) -> bool:
        """Return whether the hint has come since the last time."""
        called, self.called = self.called, False
        return called

    async def for_turn(self, until_s: float, poll_every_s: float) -> None:
        """Wait until the hint comes, or it is time to ask without one.

        Args:
            until_s: end of the whole wait.
            poll_every_s: pause between two polls, if it is the first.
        """
        began_s, listened = time.monotonic(), self.listens
        while not self.called and self.listens == listened:
            self._news = anyio.Event()
            pause_s = poll_every_s if self.is_first else OTHERS_POLL_EVERY_S
            rest_s = min(began_s + pause_s, until_s) - time.monotonic()
            if rest_s <= 0:
                await self._hints.probe()
                return
            with anyio.move_on_after(rest_s):
                await self._news.wait()

    def end(self) -> None:
        """Leave the line, and let the next one know that it is the first."""
        was_first = self.is_first
        self._line.remove(self)
        self._hints.leave([self._channel])
        if was_first and self._line:
            self._line[0]._news.set()  # noqa: SLF001 - of the same class
