"""The execution locks of one attempt: one for each slot whose state it changes, so that only one attempt can.

Taken when the state is first used, or before the handler. After it was taken, the task is asked whether it is still
ours: only then does the attempt go on (protocol rule 18).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import anyio

from orchestrator.core.errors import Fenced, OrchestratorError
from orchestrator.core.log import get_logger
from orchestrator.locks import scripts
from orchestrator.locks.keeping import Kept
from orchestrator.locks.model import Claim, Taken, TakeStatus, describe, new_nonce
from orchestrator.locks.waiting import LEAVE_S
from orchestrator.store.keys import ScopeKeys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from orchestrator.locks.keeping import Keeper
    from orchestrator.locks.waiting import WaitingRoom
    from orchestrator.store.calls import Call
    from orchestrator.store.store import Store

LockMode: TypeAlias = Literal["task", "session", "agent"]
"""What a skill has to itself: nothing but its own task, one task of a session, one execution of its agent."""
MODES: Final[tuple[LockMode, ...]] = ("task", "session", "agent")
WAIT_S: Final = 1.0
"""An attempt that does not get its lock within this time goes back (protocol rule 19)."""

_log = get_logger(__name__)


class Occupied(Exception):
    """Another task has what the skill wants for itself."""

    def __init__(self, scope: str, holder: str, left_ms: int) -> None:
        by = holder or "somebody who is just getting it"
        super().__init__(f"{scope} is locked by {by}, {left_ms} ms left unless renewed")


class AwaitedByHolder(Exception):
    """The holder waits for this very task: neither could ever go on."""

    def __init__(self, scope: str, holder: str) -> None:
        super().__init__(
            f"{scope} is locked by {holder}, which waits for this task: they would wait for each other for ever; "
            "let the parent submit without awaiting, give the child another session, or its skill another lock="
        )


@dataclass(frozen=True, slots=True)
class LockOwner:
    """Whose locks they are.

    Attributes:
        owns: asks Redis whether the attempt still owns its task.
        lost: told when a lock is lost for good; the attempt is to end.
        renewed: whether its locks are to be renewed still; asked from the thread that does.
    """

    task: str
    generation: str
    agent: str
    session: str | None
    lease_ms: int
    owns: Callable[[], Awaitable[bool]]
    lost: Callable[[str], None]
    renewed: Callable[[], bool]


class ExecutionLock:
    """The lock of an attempt in one scope: the right to change its state (`locks.model.Authority`)."""

    def __init__(
        self, keys: ScopeKeys, lock: str, attempt: LockOwner, *, store: Store, room: WaitingRoom, keeper: Keeper
    ) -> None:
        self._keys, self._lock, self._attempt = keys, lock, attempt
        self._store, self._room, self._keeper = store, room, keeper
        self._nonce = new_nonce()
        self._taking = anyio.Lock(fast_acquire=True)
        self._claim: Claim | None = None
        self._number: int | None = None
        self._fenced: Fenced | None = None
        self._dropped = False

    @property
    def held(self) -> Claim | None:
        """What it holds, if it was taken and not lost."""
        return None if self._fenced is not None else self._claim

    @property
    def fenced(self) -> bool:
        """Whether it was refused or lost for good."""
        return self._fenced is not None

    async def claim(self) -> Claim:
        """What a change presents; takes the lock at the first use.

        Raises:
            Fenced: the attempt no longer owns its task, or lost the lock.
            StoreError: Redis did not answer; nothing was taken for sure.
        """
        if self._claim is None or self._fenced is not None:
            async with self._taking:
                if self._claim is None or self._fenced is not None:
                    await self._take(wait_s=0.0)
        assert self._claim is not None
        return self._claim

    async def wait(self) -> None:
        """Take it before the handler starts, and wait a little for it.

        Raises:
            Occupied, AwaitedByHolder: another task has it.
            Fenced, StoreError: as `claim`.
        """
        async with self._taking:
            if self._claim is None:
                await self._take(wait_s=WAIT_S)

    async def refused(self, claim: Claim, present: str) -> Claim:
        """A change was refused. Get a lapsed lock back, unless somebody has had it; see `locks.model.Authority`.

        Raises:
            Fenced: it is lost. Final.
        """
        # First the question, then the lock: other changes of the same attempt may be on their way, and would pass.
        if not present and self._fenced is None and await self._attempt.owns():
            owned_s = time.monotonic()
            rows = [(claim.lock, claim.value, self._attempt.lease_ms)]
            ((kept, present),) = await self._store.call(scripts.renew(self._keys, rows=rows))
            late = time.monotonic() - owned_s > self._attempt.lease_ms / 2000
            if kept and (not late or await self._attempt.owns()):
                return claim
        self.lose(present)
        assert self._fenced is not None
        raise self._fenced

    def lose(self, present: str) -> None:
        """Note that it is lost for good."""
        if self._fenced is None:
            self._fenced = Fenced(self._attempt.task, describe(present))

    async def _take(self, *, wait_s: float) -> None:
        if self._fenced is not None:
            raise self._fenced
        attempt = self._attempt

        def ask(wait_ms: int, *, woken: bool) -> Call[Taken]:
            return scripts.claim(
                self._keys, lock=self._lock, task=attempt.task, generation=attempt.generation, nonce=self._nonce,
                ttl_ms=attempt.lease_ms, wait_ms=wait_ms, woken=woken,
            )  # fmt: skip

        got = await self._room.get(
            self._keys, self._lock, nonce=self._nonce, ttl_ms=attempt.lease_ms, wait_s=wait_s, ask=ask
        )
        match got.taken.status:
            case TakeStatus.FENCED:
                self.lose(got.taken.value)
                raise Fenced(attempt.task, describe(got.taken.value))
            case TakeStatus.AWAITED:
                raise AwaitedByHolder(self._about, describe(got.taken.value))
            case TakeStatus.HELD:
                raise Occupied(self._about, describe(got.taken.value), got.taken.left_ms)
        claim = Claim(self._keys, self._lock, got.taken.value)
        try:
            owned = await attempt.owns()
        except BaseException:
            await self._room.leave(self._keys, self._lock, self._nonce)
            raise
        if not owned:
            self.lose("")
            await self._room.leave(self._keys, self._lock, self._nonce)
            raise Fenced(attempt.task)
        self._claim = claim
        # No timer: an attempt outlives an outage as its lease does, and a lapsed lock that nobody had is taken again.
        kept = Kept(
            claim, ttl_s=attempt.lease_ms / 1000, asked_s=got.asked_s, lost=self._lost, watched=False,
            wanted=attempt.renewed,
        )  # fmt: skip
        self._number = self._keeper.add(kept)

    @property
    def _about(self) -> str:
        return f"{self._keys.kind} {self._keys.id!r}"

    def _lost(self, present: str | None) -> None:
        if not self._dropped:
            self.lose(present or "")
            self._attempt.lost(describe(present or ""))

    async def note_awaited(self, tasks: Sequence[str]) -> None:
        """Note for which tasks the holder waits, so that none of them waits for the holder."""
        if (held := self.held) is not None:
            await self._store.call(scripts.await_for(held, tasks=tasks))

    def forbid(self) -> None:
        """Present it no more and renew it no longer; it lapses, unless the next attempt takes it over before."""
        self._dropped = True
        self.lose("")
        if self._number is not None:
            self._keeper.remove(self._number)

    async def drop(self) -> None:
        """Give it up; nothing can be changed under it any more."""
        self.forbid()
        if self._claim is not None:
            claim, self._claim = self._claim, None
            await self._room.leave(claim.keys, claim.lock, self._nonce)


class ExecutionLocks:
    """All that one attempt may need. Nothing is sent before the first is taken."""

    def __init__(
        self,
        attempt: LockOwner,
        *,
        mode: LockMode,
        prefix: str,
        store: Store,
        room: WaitingRoom,
        keeper: Keeper,
    ) -> None:
        self._attempt, self._mode, self._prefix = attempt, mode, prefix
        self._store, self._room, self._keeper = store, room, keeper
        self._open: dict[tuple[str, str], ExecutionLock] = {}

    @property
    def session(self) -> ExecutionLock:
        """The right to change the session's workspace, scratch and chat.

        Raises:
            OrchestratorError: the task has no session.
        """
        if self._attempt.session is None:
            raise OrchestratorError(f"task {self._attempt.task} belongs to no session; submit it with session=")
        lock = "exec" if self._mode == "session" else f"exec:{self._attempt.task}"
        return self._of("session", self._attempt.session, lock)

    @property
    def agent(self) -> ExecutionLock:
        """The right to change what the agent remembers."""
        return self._of("agent", self._attempt.agent, f"exec:{self._attempt.task}")

    @property
    def exclusive(self) -> bool:
        """Whether other tasks wait while one of these is held."""
        return self._mode != "task"

    @property
    def lost(self) -> bool:
        """Whether one that was held is somebody else's."""
        return any(lock.fenced for lock in self._open.values())

    @property
    def fence(self) -> int | None:
        """The number of the first lock that was taken; None before."""
        for lock in self._open.values():
            if (held := lock.held) is not None:
                return held.fence
        return None

    def _of(self, kind: str, id_: str, lock: str) -> ExecutionLock:
        found = self._open.get((kind, lock))
        if found is None:
            keys = ScopeKeys(self._prefix, kind, id_)
            found = self._open[kind, lock] = ExecutionLock(
                keys, lock, self._attempt, store=self._store, room=self._room, keeper=self._keeper
            )
        return found

    async def before(self, *, again: bool) -> None:
        """Take what must be held before the handler starts.

        Args:
            again: an attempt of the task may have begun before, and may be running still.

        Raises:
            Occupied, AwaitedByHolder, Fenced, StoreError: it was not got; nothing is held.
        """
        if self._attempt.session is not None and (self._mode == "session" or again):
            await self.session.wait()
        if self._mode == "agent":
            await self._of("agent", self._attempt.agent, "exec").wait()

    async def note_awaited(self, tasks: Sequence[str]) -> None:
        """The handler waits for these tasks: none of them may wait for a lock that only one task can have."""
        for (_, name), lock in self._open.items():
            if name == "exec":
                await lock.note_awaited(tasks)

    def forbid(self) -> None:
        """Its handler does not end: it may change nothing from now on, and nothing is renewed for it."""
        for lock in self._open.values():
            lock.forbid()

    async def drop(self) -> None:
        """Give up all, whatever is cancelled around; the attempt has ended."""
        with anyio.move_on_after(LEAVE_S, shield=True):
            for lock in self._open.values():
                await lock.drop()
