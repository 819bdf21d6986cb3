"""The values of a task's life. Pure: nothing here talks to Redis."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from enum import StrEnum

import msgspec


class TaskState(StrEnum):
    """Where a task is. The last four are final."""

    SCHEDULED = "scheduled"
    READY = "ready"
    ASSIGNED = "assigned"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def final(self) -> bool:
        """Whether the task can never change again by itself."""
        return self in _FINAL


_FINAL = frozenset({TaskState.SUCCEEDED, TaskState.DEAD, TaskState.CANCELLED, TaskState.EXPIRED})
STATE_OF_LETTER = {state.value[0]: state for state in _FINAL}
"""Events and replies carry the first letter of a final state."""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What travels with a task and never changes: our fields, and the arguments as JSON bytes that nobody rewrites.

    Attributes:
        skill: name of the handler; first, because the scripts read it there (`lua/includes/skill_queue.lua`).
        args: JSON object, UTF-8.
        priority: 0-9, lower first; for display, the rank decides.
        session: the conversation it belongs to.
        tags: free labels.
        timeout_s: overrides the skill's time limit.
        max_attempts: overrides the skill's.
        key: idempotency key as given by the caller.
        parent: task that submitted this one.
        depth: 0 for a task without parent.
    """

    skill: str
    args: bytes
    priority: int = 2
    session: str | None = None
    tags: tuple[str, ...] = ()
    timeout_s: float | None = None
    max_attempts: int | None = None
    key: str | None = None
    parent: str | None = None
    depth: int = 0


decode_envelope = msgspec.msgpack.Decoder(Envelope).decode
_pack = msgspec.msgpack.Encoder().encode
_NO_OPTIONS = msgspec.structs.astuple(Envelope("", b""))[2:]


def encode_envelope(envelope: Envelope) -> bytes:
    """Pack an envelope; that of a task without options ends after the arguments, and the decoder fills in the rest."""
    values = msgspec.structs.astuple(envelope)
    return _pack(values[:2] if values[2:] == _NO_OPTIONS else values)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One attempt as an inbox hands it to a worker.

    Attributes:
        entry: id of the inbox entry.
        generation: the fence of the attempt; a verdict with an older one is refused.
        attempt: 1 for the first.
        deaths: how often a worker died with it.
        envelope: packed `Envelope`; empty when it is too large to travel and must be read from the task.
    """

    agent: str
    entry: str
    task_id: str
    generation: str
    attempt: int
    deaths: int
    envelope: bytes


class VerdictKind(StrEnum):
    """What an attempt decided; `lua/tasks/finish.lua` says what each does."""

    SUCCEEDED = "succeeded"
    DEAD = "dead"
    RETRY = "retry"
    SNOOZE = "snooze"
    BACK = "back"
    UNSTARTED = "unstarted"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of one attempt.

    Attributes:
        payload: result as JSON, or the traceback text of a failure.
        delay_ms: retry or snooze: wait so long.
        at_ms: snooze: wait until.
        reason: one line for people.
    """

    kind: VerdictKind
    payload: bytes = b""
    delay_ms: int = 0
    at_ms: int = 0
    reason: str = ""


class FinishStatus(StrEnum):
    """What became of a verdict."""

    OK = "ok"
    ALREADY = "already"
    STALE = "stale"


class LeaseStatus(StrEnum):
    """What a renewal found."""

    KEPT = "kept"
    LOST = "lost"
    CANCELLED = "cancelled"


class CancelStatus(StrEnum):
    """What a cancel did."""

    ENDED = "ended"
    SIGNALLED = "signalled"
    ALREADY = "already"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Assigned:
    """What one assign call did.

    Attributes:
        count: tasks that went into the inbox.
        left: more could be assigned right now.
        wait_us: microseconds until a rate limit lets the next start pass; 0 when none holds tasks back.
    """

    count: int
    left: bool
    wait_us: int


@dataclass(frozen=True, slots=True)
class Promoted:
    """What one promote call did.

    Attributes:
        wait_s: until the next is due; None when nothing is scheduled.
        left: more is due now.
    """

    promoted: int
    expired: int
    wait_s: float | None
    left: bool


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """State of a task, and in words what it waits for."""

    state: TaskState
    why: str = ""


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """Everything that is known of one task.

    Attributes:
        attempts: executions that failed or died so far, plus the present or successful one.
        errors: traceback text of each failed attempt, oldest first.
        deaths: evidence of each death: when, which worker, how.
    """

    id: str
    state: TaskState
    why: str
    skill: str
    agent: str | None
    worker: str | None
    priority: int
    session: str | None
    tags: tuple[str, ...]
    key: str | None
    parent: str | None
    attempts: int
    submitted_at: datetime
    due_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str = ""
    args: bytes = field(default=b"", repr=False)
    result: bytes | None = field(default=None, repr=False)
    errors: tuple[str, ...] = field(default=(), repr=False)
    deaths: tuple[str, ...] = ()
