"""Named locks of one scope, and the lease of their holder."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.command_record import check_said
from orchestrator.core.durations import Duration, to_seconds
from orchestrator.core.errors import InvalidInput, LockBusy, LockLost, NotHeld, Occupied
from orchestrator.core.log import get_logger
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
from orchestrator.store.keys import EXECUTION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from orchestrator.locks.model import LockInfo
    from orchestrator.locks.renewal import LockRenewer
    from orchestrator.locks.waiter import LockWaiter, TakeResult
    from orchestrator.store.calls import Call
    from orchestrator.store.keys import ScopeKeys
    from orchestrator.store.store import Store

    RecordTakenAway = Callable[[str, LockInfo, str, str | None], Awaitable[str]]
    """Records a lock that was taken away, with its scope, the reason and the actor; returns why it did not."""

_log = get_logger(__name__)

MIN_TTL_S: Final = 0.1
MAX_TTL_S: Final = 86_400.0
OWNER_CHARS: Final = 200


class Lease:
    """A named lock that this process holds. Changes of shared state in its scope can present it.

    Attributes:
        lock: name of the lock.
        scope: `session:S`, `agent:A`, `user:U`, `domain:D`, `global` or `pool`.
        token: random, unique to this ownership.
        fence: number of this ownership, higher than every earlier one. Pass it to the resource that the lock protects
            outside of Redis, which must refuse a lower fence than the highest it has seen.
        lost: how the lock was lost; empty while it is held.
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
        """Time by `time.monotonic()` until which the lock is surely held. Each renewal extends it."""
        return self._deadline_s if self._renewal is None else self._renewal.deadline_s

    @property
    def held(self) -> bool:
        """True while the lock is held, as far as this process knows without asking Redis."""
        return not self._released and not self.lost and time.monotonic() < self.deadline

    async def extend(self, ttl: Duration | None = None) -> None:
        """Restart the lifetime of the lock. `hold` renews by itself.

        Args:
            ttl: new lifetime, seconds or timedelta; by default the one it was taken with.

        Raises:
            NotHeld: the lock has lapsed, or another owner has it.
            ServerUnavailable: no reply; the lock may or may not have been extended.
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
        """Release the lock; the longest waiter gets it. Not needed within `hold`.

        If Redis does not reply, this only logs a warning, because the lock lapses by itself.

        Raises:
            NotHeld: the lock had lapsed, so the guarded work may have overlapped with another owner's.
        """
        self._check_held(by_clock=False)
        self._released = True
        if await self._waiter.release(self._proof.keys, self._proof.lock, self.token) is False:
            raise NotHeld(
                self.lock, "had lapsed before it was released; another owner may have worked at the same time"
            )

    def lose(self, why: str) -> None:
        """Mark the lock as lost."""
        self.lost = self.lost or why

    def ended(self) -> bool:
        """Mark the lock as released, and return whether it was marked before."""
        before, self._released = self._released, True
        return before

    def set_renewal(self, renewal: RenewedLock) -> None:
        """Set the renewal whose deadline counts."""
        self._renewal = renewal

    def _check_held(self, *, by_clock: bool = True) -> None:
        if self._released:
            raise NotHeld(self.lock, "was released before")
        if self.lost:
            raise NotHeld(self.lock, f"is no longer held: {self.lost}")
        if by_clock and time.monotonic() >= self.deadline:
            raise NotHeld(self.lock, "is no longer held: it had lapsed")

    # ------------------------------------------------------------------------- as the right to change shared state

    @property
    def task(self) -> str:
        """Empty: a lease belongs to no task; see `locks.model.WriteGuard`."""
        return ""

    @property
    def exclusive_value(self) -> str:
        """Value of the scope's exclusive lock while this is it, and held; else empty."""
        return self._proof.value if self._proof.lock == EXECUTION and self.held else ""

    async def proof(self) -> LockProof:
        """Return the proof that changes of shared state present; see `locks.model.WriteGuard`.

        Raises:
            LockLost: the lock is no longer held.
        """
        if not self.held:
            raise LockLost(self.lock, f"was lost: {self.lost or 'it had lapsed'}; nothing was changed")
        return self._proof

    async def reacquire(self, proof: LockProof, present: str) -> LockProof:
        """Report the lock as lost, because a script refused it; see `locks.model.WriteGuard`.

        Raises:
            LockLost: always.
        """
        self.lose(_lost_to(present))
        raise LockLost(self.lock, f"was lost: {self.lost}; nothing was changed (fence {proof.fence})")


class Locks:
    """The named locks of one scope. Locks of different scopes are independent."""

    def __init__(
        self,
        keys: ScopeKeys,
        *,
        pool: str,
        owner: str,
        store: Store,
        waiter: LockWaiter,
        renewer: LockRenewer,
        record: RecordTakenAway,
    ) -> None:
        self._keys, self._pool, self._store, self._waiter, self._renewer = keys, pool, store, waiter, renewer
        self._record = record
        self._owner = " ".join(owner.split())[:OWNER_CHARS]

    @property
    def scope(self) -> str:
        """`session:S`, `agent:A`, `user:U`, `domain:D`, `global` or `pool`."""
        return scope_name(self._keys)

    @property
    def waiter(self) -> LockWaiter:
        """Waits for the locks of this process."""
        return self._waiter

    def within(self, scope: str) -> Locks:
        """Return the locks of another scope, for the same owner.

        Args:
            scope: `session:S`, `agent:A`, `user:U`, `domain:D`, `global` or `pool`.

        Raises:
            InvalidInput: not a scope.
        """
        keys = parse_scope(scope, prefix=self._keys.prefix, pool=self._pool)
        return Locks(
            keys,
            pool=self._pool,
            owner=self._owner,
            store=self._store,
            waiter=self._waiter,
            renewer=self._renewer,
            record=self._record,
        )

    @asynccontextmanager
    async def hold(
        self, name: str, *, ttl: Duration | None = None, wait: Duration | None = None, profile: str = "memory"
    ) -> AsyncIterator[Lease]:
        """Hold a lock during a block: `async with locks.hold("report") as lease:`.

        The lock is renewed while the block runs, and released when it ends. If a renewal fails for too long, the block
        is cancelled before another owner can get the lock.

        Args:
            name: any text of up to 256 bytes.
            ttl: seconds or timedelta until the lock of a dead holder lapses.
            wait: seconds or timedelta to wait for the lock; 0 asks once.
            profile: usual `ttl` and `wait`: `memory` (30, 5), `coordination` (10, 5), `execution` (300, 5).

        Raises:
            LockBusy: another owner has it; the error names the holder and the ms that it has left.
            LockLost: the lock was lost before the block ended.
            InvalidInput: an invalid name or time.
            ServerUnavailable: no reply.
        """
        ttl_s, wait_s = _times(ttl, wait, profile)
        async with self._hold(self._keys.lock(name), name, ttl_s, wait_s) as lease:
            yield lease

    @asynccontextmanager
    async def hold_scope(self, *, ttl: Duration | None = None, wait: Duration | None = None) -> AsyncIterator[Lease]:
        """Hold the whole scope during a block, as a task with `lock="session"` or `"agent"` does.

        Redis refuses every change of its state that does not present this lease.

        Args:
            ttl: see `hold`.
            wait: see `hold`.

        Raises:
            Occupied: another owner has it.
            LockLost, InvalidInput, ServerUnavailable: see `hold`.
        """
        ttl_s, wait_s = _times(ttl, wait, "memory")
        async with self._hold(EXECUTION, EXECUTION, ttl_s, wait_s) as lease:
            yield lease

    @asynccontextmanager
    async def _hold(self, lock: str, name: str, ttl_s: float, wait_s: float) -> AsyncIterator[Lease]:
        lease, proof = await self._acquire(lock, name, ttl_s, wait_s)
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
                # A lost lock has lapsed, or lapses within a second: do not delay the end of the block.
                if not lease.ended() and not lease.lost:
                    released = await self._waiter.release(proof.keys, proof.lock, lease.token)
                    if released is False:
                        lease.lose("it had lapsed before its block ended")
        if lease.lost:
            raise LockLost(
                name, f"was lost before its block ended: {lease.lost}; another owner may have worked at the same time"
            )

    async def try_acquire(self, name: str, *, ttl: Duration | None = None, profile: str = "memory") -> Lease | None:
        """Take a lock if it is free. It is not renewed: finish in time or call `extend`, and call `release`.

        Args:
            name: see `hold`.
            ttl: see `hold`.
            profile: see `hold`.

        Returns:
            None if another owner has it.

        Raises:
            InvalidInput, ServerUnavailable: see `hold`.
        """
        ttl_s, _ = _times(ttl, None, profile)
        try:
            lease, _ = await self._acquire(self._keys.lock(name), name, ttl_s, 0.0)
        except LockBusy:
            return None
        return lease

    async def peek(self, name: str) -> LockInfo | None:
        """Return the current holder of a lock, or None if it is free."""
        found = await self._store.call(scripts.peek(self._keys, lock=self._keys.lock(name)))
        return found[0] if found else None

    async def list(self, limit: int = 500) -> list[LockInfo]:
        """List the held locks of the scope, those that lapse first in front."""
        return await self._store.call(scripts.peek(self._keys, limit=limit))

    async def take_away(self, lock: LockInfo, *, reason: str = "", actor: str | None = None) -> bool:
        """Release a lock of another owner, whose block is cancelled at its next renewal. `orc control list` shows it.

        Until then the old and a new owner may work at the same time, unless the protected resource checks the fence.

        Args:
            lock: the lock as `peek` or `list` returned it.
            reason: kept with the record.
            actor: who takes it; the user of this process by default.

        Returns:
            False: that ownership had ended; nothing was changed.

        Raises:
            InvalidInput: `actor` has more than 500 characters, or a text is not valid; nothing was changed.
        """
        taken = await take_from_holder(
            self._keys,
            lock,
            store=self._store,
            waiter=self._waiter,
            record=self._record,
            reason=reason,
            actor=actor,
        )
        if taken.unrecorded:
            _log.warning("lock_not_recorded", lock=lock.name, error=taken.unrecorded)
        return taken.released

    async def _acquire(self, lock: str, name: str, ttl_s: float, wait_s: float) -> tuple[Lease, LockProof]:
        nonce, ttl_ms = new_nonce(), round(ttl_s * 1000)

        def make_call(wait_ms: int, *, woken: bool, listens: bool) -> Call[TakeReply]:
            return scripts.take(
                self._keys, lock=lock, nonce=nonce, owner=self._owner, ttl_ms=ttl_ms, wait_ms=wait_ms,
                woken=woken, listens=listens,
            )  # fmt: skip

        began_s = time.monotonic()
        got: TakeResult = await self._waiter.get(
            self._keys, lock, nonce=nonce, ttl_ms=ttl_ms, wait_s=wait_s, make_call=make_call
        )
        if got.reply.status is not TakeStatus.TAKEN:
            waited_s = time.monotonic() - began_s if wait_s else 0.0
            holder, left_ms = describe(got.reply.value), got.reply.left_ms
            if lock == EXECUTION:
                raise Occupied(self.scope, holder, left_ms, waited_s)
            raise LockBusy(name, holder, left_ms, waited_s)
        proof = LockProof(self._keys, lock, got.reply.value)
        lease = Lease(name, proof, nonce, ttl_s=ttl_s, sent_s=got.sent_s, store=self._store, waiter=self._waiter)
        return lease, proof


@dataclass(frozen=True, slots=True)
class TakenLock:
    """Outcome of `take_from_holder`.

    Attributes:
        released: whether the lock was released; else that ownership had ended.
        unrecorded: why the action was not recorded; empty if it was.
    """

    released: bool
    unrecorded: str = ""


async def take_from_holder(
    keys: ScopeKeys,
    lock: LockInfo,
    *,
    store: Store,
    waiter: LockWaiter,
    record: RecordTakenAway,
    reason: str = "",
    actor: str | None = None,
) -> TakenLock:
    """Take a lock from its holder as `Locks.take_away` does, and return also why that is not recorded."""
    check_said(actor, reason, cut=True)
    (dropped,) = await store.call(scripts.drop(keys, rows=[(lock.at, lock.nonce)]))
    await waiter.wake(keys, lock.at, dropped.wake)
    if not dropped.released:
        return TakenLock(released=False)
    return TakenLock(released=True, unrecorded=await record(scope_name(keys), lock, reason, actor))


def _lost_to(present: str) -> str:
    holder = describe(present)
    return f"{holder} has it now" if holder else "it had lapsed"


def to_ttl_s(ttl: Duration) -> float:
    """Convert a lifetime to seconds.

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
        raise InvalidInput(f"{profile!r} is not a lock profile; use {', '.join(PROFILES)}")
    return to_ttl_s(usual.ttl if ttl is None else ttl), to_seconds("wait", usual.wait if wait is None else wait)
