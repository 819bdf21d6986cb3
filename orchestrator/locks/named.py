"""Named locks of one scope: `hold`, `try_acquire`, `peek`, and the lease that an owner has."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.durations import Duration, to_seconds
from orchestrator.core.errors import InvalidInput, LockBusy, LockLost, NotHeld
from orchestrator.locks import scripts
from orchestrator.locks.model import (
    PROFILES,
    LockProof,
    TakeReply,
    TakeStatus,
    describe,
    new_nonce,
    parse_scope,
    scope_name,
)
from orchestrator.locks.renewal import RenewedLock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orchestrator.locks.model import LockInfo
    from orchestrator.locks.renewal import LockRenewer
    from orchestrator.locks.waiter import LockWaiter, TakeResult
    from orchestrator.store.calls import Call
    from orchestrator.store.keys import ScopeKeys
    from orchestrator.store.store import Store

MIN_TTL_S: Final = 0.1
MAX_TTL_S: Final = 86_400.0
OWNER_CHARS: Final = 200


class Lease:
    """A named lock in our hands; also what changes of shared state in its scope present.

    Attributes:
        lock: its name.
        scope: `session:S`, `agent:A` or `pool`.
        token: tells this ownership from every other; random.
        fence: its number, higher than that of every owner before: show it to whatever the lock protects outside of
            Redis, and let that refuse a lower one than it has seen.
        lost: how it was lost; empty unless it was.
    """

    def __init__(
        self,
        lock: str,
        proof: LockProof,
        token: str,
        *,
        ttl_s: float,
        sent_s: float,
        store: Store,
        waiter: LockWaiter,
    ) -> None:
        self.lock: str = lock
        self.scope: str = scope_name(proof.keys)
        self.token: str = token
        self.fence: int = proof.fence
        self._proof, self._ttl_s, self._store, self._waiter = proof, ttl_s, store, waiter
        self._deadline_s = sent_s + ttl_s
        self._renewal: RenewedLock | None = None
        self.lost: str = ""
        self._released = False

    @property
    def deadline(self) -> float:
        """It is ours until then for sure, by `time.monotonic()`; moves on with each renewal."""
        return self._deadline_s if self._renewal is None else self._renewal.deadline_s

    @property
    def held(self) -> bool:
        """Whether it is ours as far as can be told without asking."""
        return not self._released and not self.lost and time.monotonic() < self.deadline

    async def extend(self, ttl: Duration | None = None) -> None:
        """Give it its whole time again, or another one. `hold` does so by itself.

        Args:
            ttl: seconds or timedelta from now; by default as when it was taken.

        Raises:
            NotHeld: it has lapsed, or somebody else has it.
            ServerUnavailable: no answer; it lasts as long as before, or longer.
        """
        self._check_held()
        ttl_s = self._ttl_s if ttl is None else to_ttl_s(ttl)
        sent_s = time.monotonic()
        rows = [(self._proof.lock, self._proof.value, round(ttl_s * 1000))]
        ((renewed, present),) = await self._store.call(scripts.renew(self._proof.keys, rows=rows))
        if not renewed:
            self.lose(_lost_to(present))
            self._check_held()
        self._ttl_s, self._deadline_s = ttl_s, sent_s + ttl_s
        if self._renewal is not None:
            self._renewal.ttl_s = ttl_s
            self._renewal.set_renewed(sent_s)

    async def release(self) -> None:
        """Give it up; the one that has waited the longest gets it. Not needed within `hold`.

        Without an answer from Redis that is only logged: the lock lapses by itself.

        Raises:
            NotHeld: it was not ours any more; what was done meanwhile may have met another owner.
        """
        self._check_held(by_clock=False)
        self._released = True
        if await self._waiter.release(self._proof.keys, self._proof.lock, self.token) is False:
            raise NotHeld(self.lock, "had lapsed before it was released; what it guarded may have met another owner")

    def lose(self, why: str) -> None:
        """Note that it is somebody else's by now, or nobody's."""
        self.lost = self.lost or why

    def ended(self) -> bool:
        """End the ownership; whether it had ended before."""
        before, self._released = self._released, True
        return before

    def set_renewal(self, renewal: RenewedLock) -> None:
        """Note who renews it."""
        self._renewal = renewal

    def _check_held(self, *, by_clock: bool = True) -> None:
        if self._released:
            raise NotHeld(self.lock, "was released before")
        if self.lost:
            raise NotHeld(self.lock, f"is not held any more: {self.lost}")
        if by_clock and time.monotonic() >= self.deadline:
            raise NotHeld(self.lock, "is not held any more: it had lapsed")

    # ------------------------------------------------------------------------- as the right to change shared state

    async def proof(self) -> LockProof:
        """What changes of shared state in its scope present; see `locks.model.WriteGuard`.

        Raises:
            LockLost: it is not held any more.
        """
        if not self.held:
            raise LockLost(self.lock, f"was lost: {self.lost or 'it had lapsed'}; nothing was changed")
        return self._proof

    async def reacquire(self, proof: LockProof, present: str) -> LockProof:
        """A change was refused: the lock is lost; see `locks.model.WriteGuard`.

        Raises:
            LockLost: always.
        """
        self.lose(_lost_to(present))
        raise LockLost(self.lock, f"was lost: {self.lost}; nothing was changed (fence {proof.fence})")


class Locks:
    """The named locks of one scope. Locks of different scopes never meet."""

    def __init__(
        self, keys: ScopeKeys, *, pool: str, owner: str, store: Store, waiter: LockWaiter, renewer: LockRenewer
    ) -> None:
        self._keys, self._pool, self._store, self._waiter, self._renewer = keys, pool, store, waiter, renewer
        self._owner = " ".join(owner.split())[:OWNER_CHARS]

    @property
    def scope(self) -> str:
        """`session:S`, `agent:A` or `pool`."""
        return scope_name(self._keys)

    def within(self, scope: str) -> Locks:
        """The locks of another scope, for the same owner.

        Args:
            scope: `session:S`, `agent:A` or `pool`.

        Raises:
            InvalidInput: it is none of these.
        """
        keys = parse_scope(scope, prefix=self._keys.prefix, pool=self._pool)
        return Locks(
            keys, pool=self._pool, owner=self._owner, store=self._store, waiter=self._waiter, renewer=self._renewer
        )

    @asynccontextmanager
    async def hold(
        self, name: str, *, ttl: Duration | None = None, wait: Duration | None = None, profile: str = "memory"
    ) -> AsyncIterator[Lease]:
        """Have a lock for the time of a block: `async with locks.hold("report") as lease:`.

        It is renewed as long as the block runs. If it cannot be, the block is cancelled before the lock can be somebody
        else's. It is released however the block ends.

        Args:
            name: any text of up to 256 bytes.
            ttl: seconds or timedelta until it lapses when its holder has died.
            wait: seconds or timedelta to wait for it; 0 asks once.
            profile: the usual times: `memory` (30, 5), `coordination` (10, 5), `execution` (300, 5).

        Raises:
            LockBusy: somebody else has it; names the holder and the ms that it has left.
            LockLost: it could not be kept until the end of the block.
            InvalidInput: a name or a time that cannot be.
            ServerUnavailable: no answer.
        """
        ttl_s, wait_s = _times(ttl, wait, profile)
        lease, proof = await self._acquire(name, ttl_s, wait_s)
        with anyio.CancelScope() as body:

            def lost(present: str | None) -> None:
                lease.lose("it could not be renewed in time" if present is None else _lost_to(present))
                body.cancel()

            renewal = RenewedLock(proof, ttl_s=ttl_s, sent_s=lease.deadline - ttl_s, on_lost=lost)
            lease.set_renewal(renewal)
            number = self._renewer.add(renewal)
            try:
                yield lease
            finally:
                self._renewer.remove(number)
                # One that is lost has lapsed, or does within a second: its block is not to be held up by that.
                if not lease.ended() and not lease.lost:
                    released = await self._waiter.release(proof.keys, proof.lock, lease.token)
                    if released is False:
                        lease.lose("it had lapsed before its block ended")
        if lease.lost:
            raise LockLost(
                name, f"was lost while it was needed: {lease.lost}; what its block did may have met another owner"
            )

    async def try_acquire(self, name: str, *, ttl: Duration | None = None, profile: str = "memory") -> Lease | None:
        """Take a lock if nobody has it. It is not renewed: `extend` it or be done in time, and `release` it.

        Args:
            name: see `hold`.
            ttl: see `hold`.
            profile: see `hold`.

        Returns:
            None if somebody has it.

        Raises:
            InvalidInput, ServerUnavailable: see `hold`.
        """
        ttl_s, _ = _times(ttl, None, profile)
        try:
            lease, _ = await self._acquire(name, ttl_s, 0.0)
        except LockBusy:
            return None
        return lease

    async def peek(self, name: str) -> LockInfo | None:
        """See who has a lock; None: nobody. It may be somebody else when this returns."""
        found = await self._store.call(scripts.peek(self._keys, lock=self._keys.lock(name)))
        return found[0] if found else None

    async def list(self, limit: int = 500) -> list[LockInfo]:
        """See every lock of the scope that somebody has, those that lapse first before others."""
        return await self._store.call(scripts.peek(self._keys, limit=limit))

    async def take_away(self, lock: LockInfo) -> bool:
        """Release a lock that somebody else has: what it guards is cancelled there at the next renewal.

        Until then two may work at the same time, as far as what they change does not look at the fence.

        Args:
            lock: as `peek` or `list` saw it.

        Returns:
            False: it is not that owner's any more; nothing was changed.
        """
        return (await self._store.call(scripts.drop(self._keys, rows=[(lock.at, lock.nonce)])))[0]

    async def _acquire(self, name: str, ttl_s: float, wait_s: float) -> tuple[Lease, LockProof]:
        lock, nonce, ttl_ms = self._keys.lock(name), new_nonce(), round(ttl_s * 1000)

        def make_call(wait_ms: int, *, woken: bool) -> Call[TakeReply]:
            return scripts.take(
                self._keys, lock=lock, nonce=nonce, owner=self._owner, ttl_ms=ttl_ms, wait_ms=wait_ms, woken=woken
            )

        began_s = time.monotonic()
        got: TakeResult = await self._waiter.get(
            self._keys, lock, nonce=nonce, ttl_ms=ttl_ms, wait_s=wait_s, make_call=make_call
        )
        if got.reply.status is not TakeStatus.TAKEN:
            waited_s = time.monotonic() - began_s if wait_s else 0.0
            raise LockBusy(name, describe(got.reply.value), got.reply.left_ms, waited_s)
        proof = LockProof(self._keys, lock, got.reply.value)
        lease = Lease(name, proof, nonce, ttl_s=ttl_s, sent_s=got.sent_s, store=self._store, waiter=self._waiter)
        return lease, proof


def _lost_to(present: str) -> str:
    holder = describe(present)
    return f"{holder} has it now" if holder else "it had lapsed"


def to_ttl_s(ttl: Duration) -> float:
    """Read how long a lock lasts.

    Raises:
        InvalidInput: shorter than a tenth of a second, or longer than a day.
    """
    seconds = to_seconds("ttl", ttl)
    if not MIN_TTL_S <= seconds <= MAX_TTL_S:
        raise InvalidInput(f"ttl must be from {MIN_TTL_S:g} s to a day, not {seconds:g} s; a held lock is renewed")
    return seconds


def _times(ttl: Duration | None, wait: Duration | None, profile: str) -> tuple[float, float]:
    usual = PROFILES.get(profile)
    if usual is None:
        raise InvalidInput(f"{profile!r} is no profile of locks; use {', '.join(PROFILES)}")
    return to_ttl_s(usual.ttl if ttl is None else ttl), to_seconds("wait", usual.wait if wait is None else wait)
