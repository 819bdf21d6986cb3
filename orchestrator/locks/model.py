"""The values of locks: what a lock's key holds, what a change of shared state presents, how long locks usually last."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol

from orchestrator.core.errors import InvalidInput
from orchestrator.store.keys import ScopeKeys

if TYPE_CHECKING:
    from collections.abc import Mapping

NEXT: Final = "next"
"""What a lock holds while it is kept for one of those who wait."""

POOL: Final = "pool"
"""The scope of locks that belong to no session and no agent."""


class TakeStatus(StrEnum):
    """What became of a try to get a lock."""

    TAKEN = "taken"
    HELD = "held"
    AWAITED = "awaited"
    """The holder waits for the very task that asks."""
    FENCED = "fenced"
    """A higher generation of the task has had the lock; final."""


@dataclass(frozen=True, slots=True)
class TakeReply:
    """The answer to such a try.

    Attributes:
        value: what the lock holds now: ours if it was taken, else the holder's.
        left_ms: what the holder has left.
    """

    status: TakeStatus
    value: str
    left_ms: int = 0


@dataclass(frozen=True, slots=True)
class LockProof:
    """A held lock, as a script that changes shared state is shown it (`lua/includes/lock.lua`).

    Attributes:
        keys: of the scope; the lock protects nothing outside of it.
        lock: its suffix there, as `exec:TASK` or `lock:NAME`.
        value: what it holds as long as it is ours; no other owner ever has the same.
    """

    keys: ScopeKeys
    lock: str
    value: str

    @property
    def fence(self) -> int:
        """The number of this ownership: higher than that of every one before."""
        return int(self.value.partition(":")[0])


class WriteGuard(Protocol):
    """The right to change the state of one scope: of an attempt, or of who holds a named lock there."""

    async def proof(self) -> LockProof:
        """What to present. Takes the lock, if that is left to the first use.

        Raises:
            Fenced, LockLost: it is somebody else's.
        """

    async def reacquire(self, proof: LockProof, present: str) -> LockProof:
        """A script answered that the lock does not hold `proof`: get it back, to present it once more.

        Args:
            proof: what was presented.
            present: what the lock holds instead; empty when it has lapsed.

        Raises:
            Fenced, LockLost: somebody else has it, or has had it meanwhile. Final.
        """


@dataclass(frozen=True, slots=True)
class LockInfo:
    """A lock that somebody has.

    Attributes:
        name: of a named lock; of an execution lock `exec` or `exec:TASK`.
        holder: who has it, for people; empty while it is being handed on.
        task: the task whose attempt has it; None for a named lock.
        fence: number of the ownership; None while it is being handed on.
        left_ms: it lapses then, unless it is renewed.
        waiting: how many wait for it.
        at: its suffix in the scope, for scripts.
        nonce: tells this ownership from every other; empty while it is being handed on.
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
    """How long a lock lasts without renewal, and how long to wait for it; seconds."""

    ttl: float
    wait: float


PROFILES: Final[Mapping[str, Profile]] = {
    "memory": Profile(ttl=30.0, wait=5.0),
    "coordination": Profile(ttl=10.0, wait=5.0),
    "execution": Profile(ttl=300.0, wait=5.0),
}
"""Usual times: `memory` for a change of what agents remember, `coordination` for short steps, `execution` for a long
run that is to be the only one. Waiters are woken, so there is no number of tries and no delay between them."""


def new_nonce() -> str:
    """What tells one ownership from every other: 16 random bytes of the system, or an error."""
    return secrets.token_hex(16)


def describe(value: str) -> str:
    """Say for people who has a lock, from what it holds."""
    if value in {"", NEXT}:
        return ""
    parts = value.split(":", 2)
    if execution := execution_of(value):
        return f"task {execution[0]}, generation {execution[1]}"
    return parts[2]


def execution_of(value: str) -> tuple[str, str] | None:
    """Task and generation that an execution lock holds; None: it is a named lock."""
    parts = value.split(":")
    if len(parts) == 4 and "-" in parts[1]:
        return parts[1], parts[2]
    return None


def info(lock: str, value: str, left_ms: int, waiting: int) -> LockInfo:
    """Read one row of `peek`."""
    execution = execution_of(value)
    return LockInfo(
        name=ScopeKeys.lock_name(lock),
        holder=describe(value),
        task=execution[0] if execution else None,
        fence=None if value == NEXT else int(value.partition(":")[0]),
        left_ms=left_ms,
        waiting=waiting,
        at=lock,
        nonce="" if value == NEXT else value.split(":")[3 if execution else 1],
    )


def parse_scope(scope: str, *, prefix: str, pool: str) -> ScopeKeys:
    """Read `session:S`, `agent:A` or `pool`.

    Raises:
        InvalidInput: it is none of these.
    """
    if scope == POOL:
        return ScopeKeys(prefix, "locks", pool)
    kind, colon, id_ = scope.partition(":")
    if kind not in {"session", "agent"} or not colon:
        raise InvalidInput(f"{scope!r} is no scope; use session:ID, agent:NAME or {POOL}")
    return ScopeKeys(prefix, kind, id_)


def scope_name(keys: ScopeKeys) -> str:
    """How people write the scope."""
    return POOL if keys.kind == "locks" else f"{keys.kind}:{keys.id}"
