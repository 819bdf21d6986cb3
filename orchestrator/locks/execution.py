"""Takes the execution locks of an attempt, so that only one attempt of a task changes shared state.

An attempt has one lock in each scope that it changes. It takes the lock at its first change, or before the handler
starts. It then asks Redis whether it still owns its task, and continues only if so (protocol rule 18).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import anyio

from orchestrator.core.errors import Fenced, OrchestratorError
from orchestrator.core.log import get_logger
from orchestrator.locks import scripts
from orchestrator.locks.model import LockProof, TakeReply, TakeStatus, describe, execution_of, new_nonce
from orchestrator.locks.renewal import RenewedLock
from orchestrator.locks.waiter import RELEASE_TIMEOUT_S
from orchestrator.store.keys import EXECUTION, ScopeKeys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from orchestrator.locks.renewal import LockRenewer
    from orchestrator.locks.waiter import LockWaiter
    from orchestrator.store.calls import Call
    from orchestrator.store.store import Store

LockMode: TypeAlias = Literal["task", "session", "agent"]
"""What a skill locks: its own task, its session for one task at a time, or its agent for one execution at a time."""
MODES: Final[tuple[LockMode, ...]] = ("task", "session", "agent")
MAX_RECHECK_MS: Final = 60_000
"""Longest time after which a task in the line of a lock looks again, if no release wakes it (protocol rule 19)."""

_log = get_logger(__name__)


class ExecutionLockBusy(Exception):
    """Another owner holds the lock that the skill requires; the task stands in its line.

    Attributes:
        recheck_ms: time after which the task should look again, in case that no release wakes it.
        scope: what is locked.
        holder: who has the lock, for people; '' while it is passed on.
        task: the task that has it, or None.
    """

    def __init__(self, scope: str, value: str, left_ms: int, ahead: int) -> None:
        self.scope, self.holder = scope, describe(value)
        execution = execution_of(value)
        self.task = execution[0] if execution else None
        by = f"is locked by {self.holder}" if self.holder else "is being passed on"
        super().__init__(f"{scope} {by}" + (f"; {ahead} before this task" if ahead else ""))
        # The first of the line looks when the lock has lapsed at the latest, the others behind it.
        self.recheck_ms = min(left_ms + 250 + 1000 * ahead, MAX_RECHECK_MS)


class ExecutionLockDeadlock(Exception):
    """The lock's holder waits for this task, so that neither could continue."""

    def __init__(self, scope: str, holder: str) -> None:
        super().__init__(
            f"{scope} is locked by {holder}, which waits for this task: a deadlock; "
            "let the parent submit without awaiting, give the child another session, or its skill another lock="
        )


@dataclass(frozen=True, slots=True)
class LockOwner:
    """The attempt that the locks belong to.

    Attributes:
        owns: asks Redis whether the attempt still owns its task.
        on_lost: called when a lock is lost for good; ends the attempt.
        may_renew: returns whether to renew the locks; called from the renewing thread.
    """

    task: str
    generation: str
    pool: str
    agent: str
    session: str | None
    lease_ms: int
    owns: Callable[[], Awaitable[bool]]
    on_lost: Callable[[str], None]
    may_renew: Callable[[], bool]


class ExecutionLock:
    """Lock of an attempt in one scope; implements `locks.model.WriteGuard`."""

    def __init__(
        self, keys: ScopeKeys, lock: str, owner: LockOwner, *, store: Store, waiter: LockWaiter, renewer: LockRenewer
    ) -> None:
        self._keys, self._lock, self._owner = keys, lock, owner
        self._store, self._waiter, self._renewer = store, waiter, renewer
        self._nonce = new_nonce()
        self._taking = anyio.Lock(fast_acquire=True)
        self._proof: LockProof | None = None
        self._number: int | None = None
        self._fenced: Fenced | None = None
        self._dropped = False

    @property
    def held(self) -> LockProof | None:
        """The proof of a lock that was taken and not lost."""
        return None if self._fenced is not None else self._proof

    @property
    def task(self) -> str:
        """The task of the attempt."""
        return self._owner.task

    @property
    def exclusive_value(self) -> str:
        """Value of the scope's exclusive lock while this is it, and held; else empty."""
        held = self.held
        return held.value if held is not None and held.lock == EXECUTION else ""

    @property
    def fenced(self) -> bool:
        """True if the lock was refused or lost for good."""
        return self._fenced is not None

    async def proof(self) -> LockProof:
        """Return the proof that a change presents. Takes the lock at the first use.

        Raises:
            Fenced: the attempt no longer owns its task, or lost the lock.
            StoreError: Redis did not reply; the lock may or may not have been taken.
        """
        if self._proof is None or self._fenced is not None:
            async with self._taking:
                if self._proof is None or self._fenced is not None:
                    await self._take()
        assert self._proof is not None
        return self._proof

    async def take(self) -> None:
        """Take the lock before the handler starts, or join its line.

        Raises:
            ExecutionLockBusy, ExecutionLockDeadlock: another owner holds it.
            Fenced, StoreError: as `proof`.
        """
        async with self._taking:
            if self._proof is None:
                await self._take()

    async def reacquire(self, proof: LockProof, present: str) -> LockProof:
        """Take a lapsed lock again, unless another owner had it; see `locks.model.WriteGuard`.

        Raises:
            Fenced: the lock is lost for good.
        """
        # Ask before renewing: other changes of this attempt may be under way, and a renewed lock would admit them.
        if not present and self._fenced is None and await self._owner.owns():
            owned_s = time.monotonic()
            rows = [(proof.lock, proof.value, self._owner.lease_ms)]
            ((renewed, present),) = await self._store.call(scripts.renew(self._keys, rows=rows))
            late = time.monotonic() - owned_s > self._owner.lease_ms / 2000
            if renewed and (not late or await self._owner.owns()):
                return proof
        self.lose(present)
        assert self._fenced is not None
        raise self._fenced

    def lose(self, present: str) -> None:
        """Mark the lock as lost for good."""
        if self._fenced is None:
            self._fenced = Fenced(self._owner.task, describe(present))

    async def _take(self) -> None:
        if self._fenced is not None:
            raise self._fenced
        owner = self._owner

        def make_call(wait_ms: int, *, woken: bool, listens: bool) -> Call[TakeReply]:
            return scripts.claim(
                self._keys, lock=self._lock, task=owner.task, generation=owner.generation, nonce=self._nonce,
                ttl_ms=owner.lease_ms, wait_ms=wait_ms, woken=woken, listens=listens,
                pool=owner.pool if self._lock == EXECUTION else "",
            )  # fmt: skip

        got = await self._waiter.get(
            self._keys, self._lock, nonce=self._nonce, ttl_ms=owner.lease_ms, wait_s=0, make_call=make_call
        )
        match got.reply.status:
            case TakeStatus.FENCED:
                self.lose(got.reply.value)
                raise Fenced(owner.task, describe(got.reply.value))
            case TakeStatus.AWAITED:
                raise ExecutionLockDeadlock(self._keys.words, describe(got.reply.value))
            case TakeStatus.HELD:
                reply = got.reply
                raise ExecutionLockBusy(self._keys.words, reply.value, reply.left_ms, reply.ahead)
        proof = LockProof(self._keys, self._lock, got.reply.value)
        try:
            owned = await owner.owns()
        except BaseException:
            await self._waiter.release(self._keys, self._lock, self._nonce)
            raise
        if not owned:
            self.lose("")
            await self._waiter.release(self._keys, self._lock, self._nonce)
            raise Fenced(owner.task)
        self._proof = proof
        # No timer: an attempt survives an outage as its lease does, and takes a lapsed lock again if it stayed free.
        renewal = RenewedLock(
            proof, ttl_s=owner.lease_ms / 1000, sent_s=got.sent_s, on_lost=self._lost, watched=False,
            is_wanted=owner.may_renew,
        )  # fmt: skip
        self._number = self._renewer.add(renewal)

    def _lost(self, present: str | None) -> None:
        if not self._dropped:
            self.lose(present or "")
            self._owner.on_lost(describe(present or ""))

    async def note_awaited(self, tasks: Sequence[str]) -> None:
        """Record the tasks that the holder waits for, so that these tasks do not wait for the lock."""
        if (held := self.held) is not None:
            for member in await self._store.call(scripts.await_for(held, pool=self._owner.pool, tasks=tasks)) or ():
                await self._waiter.wake(held.keys, held.lock, member)

    def revoke(self) -> None:
        """Stop presenting and renewing the lock. It lapses, unless the next attempt takes it over earlier."""
        self._dropped = True
        self.lose("")
        if self._number is not None:
            self._renewer.remove(self._number)

    async def drop(self) -> None:
        """Release the lock."""
        self.revoke()
        if self._proof is not None:
            proof, self._proof = self._proof, None
            await self._waiter.release(proof.keys, proof.lock, self._nonce)


class ExecutionLocks:
    """The execution locks of one attempt, each taken at its first use."""

    def __init__(
        self,
        owner: LockOwner,
        *,
        mode: LockMode,
        prefix: str,
        store: Store,
        waiter: LockWaiter,
        renewer: LockRenewer,
    ) -> None:
        self._owner, self._mode, self._prefix = owner, mode, prefix
        self._store, self._waiter, self._renewer = store, waiter, renewer
        self._open: dict[tuple[str, str], ExecutionLock] = {}
        """By kind and id of the scope."""

    @property
    def session(self) -> ExecutionLock:
        """The lock for the session's workspace and scratches.

        Raises:
            OrchestratorError: the task has no session.
        """
        if self._owner.session is None:
            raise OrchestratorError(f"task {self._owner.task} belongs to no session; submit it with session=")
        return self._of("session", self._owner.session, alone=self._mode == "session")

    @property
    def agent(self) -> ExecutionLock:
        """The lock for the agent's state."""
        return self._of("agent", self._owner.agent, alone=self._mode == "agent")

    def shared(self, kind: str, id_: str) -> ExecutionLock:
        """Return the lock for a scope that belongs to no task: of a user, a domain, or all.

        Raises:
            InvalidInput: an invalid id.
        """
        return self._of(kind, id_, alone=False)

    @property
    def exclusive(self) -> bool:
        """True if other tasks wait while this attempt holds a lock."""
        return self._mode != "task"

    @property
    def lost(self) -> bool:
        """True if the attempt lost a lock to another owner."""
        return any(lock.fenced for lock in self._open.values())

    @property
    def fence(self) -> int | None:
        """The fence of the lock that was taken first; None before any is taken."""
        for lock in self._open.values():
            if (held := lock.held) is not None:
                return held.fence
        return None

    def _of(self, kind: str, id_: str, *, alone: bool) -> ExecutionLock:
        found = self._open.get((kind, id_))
        if found is None:
            keys, lock = ScopeKeys(self._prefix, kind, id_), ScopeKeys.execution(None if alone else self._owner.task)
            found = self._open[kind, id_] = ExecutionLock(
                keys, lock, self._owner, store=self._store, waiter=self._waiter, renewer=self._renewer
            )
        return found

    async def take_before_start(self, *, again: bool) -> None:
        """Take the locks that the attempt needs before its handler starts.

        Args:
            again: an earlier attempt of the task may have begun, and may still run.

        Raises:
            ExecutionLockBusy, ExecutionLockDeadlock, Fenced, StoreError: a lock was not taken; the attempt holds none.
        """
        if self._owner.session is not None and (self._mode == "session" or again):
            await self.session.take()
        if self._mode == "agent":
            await self.agent.take()

    async def note_awaited(self, tasks: Sequence[str]) -> None:
        """Record the tasks that the handler waits for, so that they do not wait for its exclusive locks."""
        for lock in list(self._open.values()):
            if lock.exclusive_value:
                await lock.note_awaited(tasks)

    def revoke(self) -> None:
        """Stop presenting and renewing every lock, because the handler does not end."""
        for lock in self._open.values():
            lock.revoke()

    async def drop(self) -> None:
        """Release every lock, even when cancelled."""
        with anyio.move_on_after(RELEASE_TIMEOUT_S, shield=True):
            async with anyio.create_task_group() as group:
                # Together: a task may have a lock of each of hundreds of users.
                for lock in self._open.values():
                    group.start_soon(lock.drop)
