"""Lock values, write permissions and default lifetimes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from orchestrator.core.errors import InvalidInput
from orchestrator.core.reading import read_whole
from orchestrator.store.keys import GLOBAL, GLOBAL_ID, ScopeKeys

if TYPE_CHECKING:
    from collections.abc import Mapping

NEXT: Final = "next"
"""Value of a released lock that is reserved for the next waiter; `next:TASK:POOL` for the next task of its line."""

POOL: Final = "pool"
"""Scope of the locks that belong to a pool, not to a session or an agent."""


class TakeStatus(StrEnum):
    """Result of a try to take a lock."""

    TAKEN = "taken"
    HELD = "held"
    FREE = "free"
    """No exclusive owner holds the scope."""
    AWAITED = "awaited"
    """The holder waits for the task that asks for the lock."""
    FENCED = "fenced"
    """A higher generation of the task took the lock before; final."""


@dataclass(frozen=True, slots=True)
class TakeReply:
    """Reply to a try to take a lock.

    Attributes:
        value: what the lock holds now: our value if it was taken, else the holder's.
        left_ms: lifetime that the holder has left.
        wake: task that the caller must wake, as `TASK:POOL`; empty if there is none.
        ahead: tasks before the caller's in the line of an exclusive lock.
    """

    status: TakeStatus
    value: str
    left_ms: int = 0
    wake: str = ""
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class DropReply:
    """Reply to a release.

    Attributes:
        released: whether the caller held the lock.
        wake: as in `TakeReply`.
    """

    released: bool
    wake: str = ""


@dataclass(frozen=True, slots=True)
class LockProof:
    """Proof that the caller holds a lock; scripts compare it with the lock's key (`lua/includes/lock.lua`).

    Attributes:
        keys: the scope that the lock protects.
        lock: suffix of the lock's key, as `exec:TASK` or `lock:NAME`.
        value: value of the key while the caller holds the lock; unique to this ownership.
    """

    keys: ScopeKeys
    lock: str
    value: str

    @property
    def fence(self) -> int:
        """Number of this ownership, higher than every earlier one of the scope."""
        return read_whole(self.value.partition(":")[0])


class WriteGuard(Protocol):
    """Right to change the state of one scope; an attempt has it, or the holder of a named lock.

    Attributes:
        task: the task that changes; empty for other callers.
        exclusive_value: value of the scope's exclusive lock while the caller holds it; empty otherwise.
    """

    @property
    def task(self) -> str:
        """The task that changes."""

    @property
    def exclusive_value(self) -> str:
        """Value of the exclusive lock."""

    async def proof(self) -> LockProof:
        """Return the proof that a change presents. May take the lock at the first use.

        Raises:
            Fenced, LockLost: another owner has the lock.
        """

    async def reacquire(self, proof: LockProof, present: str) -> LockProof:
        """Get the lock back after a script found another value than `proof` in it, and return the proof to send again.

        Args:
            proof: proof that was presented.
            present: what the lock holds instead; empty when it has lapsed.

        Raises:
            Fenced, LockLost: another owner has the lock, or had it meanwhile. Final.
        """


@dataclass(frozen=True, slots=True)
class LockInfo:
    """A lock that is held.

    Attributes:
        name: name of a named lock; `exec` or `exec:TASK` for an execution lock.
        holder: description of the owner; empty while the lock is reserved for a waiter.
        task: the task whose attempt holds it; None for a named lock.
        fence: number of the ownership; None while the lock is reserved for a waiter.
        left_ms: lifetime left without a renewal.
        waiting: number of waiters.
        at: suffix of the lock's key in its scope.
        nonce: identifies this ownership; empty while the lock is reserved for a waiter.
    """

    name: str
    holder: str
    task: str | None
    fence: int | None
    left_ms: int
    waiting: int
    at: str = field(repr=False)
    nonce: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Profile:
    """Lifetime of a lock without renewal and time to wait for it, in seconds."""

    ttl: float
    wait: float


PROFILES: Final[Mapping[str, Profile]] = {
    "memory": Profile(ttl=30.0, wait=5.0),
    "coordination": Profile(ttl=10.0, wait=5.0),
    "execution": Profile(ttl=300.0, wait=5.0),
}
"""Usual times: `memory` for changes of an agent's memory, `coordination` for short steps, `execution` for a long run
that excludes others. Waiters are woken, so there is no number of tries and no delay between tries.
"""


def new_nonce() -> str:
    """Return 16 random bytes as hex, to identify one ownership."""
    return secrets.token_hex(16)


def is_reserved(value: str) -> bool:
    """Return whether a lock is kept for a waiter or for a task of its line."""
    return value.partition(":")[0] == NEXT


def describe(value: str) -> str:
    """Describe the owner of a lock from the lock's value; return an empty text if there is none."""
    if not value or is_reserved(value):
        return ""
    parts = value.split(":", 2)
    if execution := execution_of(value):
        return f"task {execution[0]}, generation {execution[1]}"
    return parts[2]


def execution_of(value: str) -> tuple[str, str] | None:
    """Return task and generation of an execution lock's value; None for a named lock."""
    parts = value.split(":")
    if len(parts) == 4 and "-" in parts[1]:
        return parts[1], parts[2]
    return None


def info(lock: str, value: str, left_ms: int, waiting: int) -> LockInfo:
    """Parse one row of `peek`."""
    execution = execution_of(value)
    return LockInfo(
        name=ScopeKeys.lock_name(lock),
        holder=describe(value),
        task=execution[0] if execution else None,
        fence=None if is_reserved(value) else read_whole(value.partition(":")[0]),
        left_ms=left_ms,
        waiting=waiting,
        at=lock,
        nonce="" if is_reserved(value) else value.split(":")[3 if execution else 1],
    )


def parse_scope(scope: str, *, prefix: str, pool: str) -> ScopeKeys:
    """Parse `session:S`, `agent:A`, `user:U`, `domain:D`, `global` or `pool`.

    Raises:
        InvalidInput: not a scope.
    """
    if scope == POOL:
        return ScopeKeys(prefix, "locks", pool)
    if scope == GLOBAL:
        return ScopeKeys(prefix, GLOBAL, GLOBAL_ID)
    kind, colon, id_ = scope.partition(":")
    if kind not in {"session", "agent", "user", "domain"} or not colon:
        raise InvalidInput(
            f"{scope!r} is not a scope; use session:ID, agent:NAME, user:ID, domain:NAME, {GLOBAL} or {POOL}"
        )
    return ScopeKeys(prefix, kind, id_)


def scope_name(keys: ScopeKeys) -> str:
    """Return the scope as users write it."""
    return POOL if keys.kind == "locks" else GLOBAL if keys.kind == GLOBAL else f"{keys.kind}:{keys.id}"
