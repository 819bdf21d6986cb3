"""The values of a task's life. Pure: nothing here talks to Redis."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from enum import StrEnum
from typing import Any, Final, Literal, TypeAlias

import msgspec


class TaskState(StrEnum):
    """Where a task is. The last four are final."""

    SCHEDULED = "scheduled"
    READY = "ready"
    ASSIGNED = "assigned"
    RUNNING = "running"
    CANCELLING = "cancelling"
    AWAITING_INPUT = "awaiting_input"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def final(self) -> bool:
        """Whether the task can never change again by itself."""
        return self in _FINAL

    @classmethod
    def _missing_(cls, value: object) -> TaskState | None:
        # Stored of a member of a lane whose turn has not come: ready, and in no queue.
        return cls.READY if value == WAITING else None


WAITING: Final = "waiting"
StoredState: TypeAlias = TaskState | Literal["waiting"]
_FINAL = frozenset({TaskState.SUCCEEDED, TaskState.DEAD, TaskState.CANCELLED, TaskState.EXPIRED})
STATE_OF_LETTER = {state.value[0]: state for state in _FINAL}
"""Events and replies carry the first letter of a final state."""


# What travels with every task holds nothing that could lead back to it, so the garbage collector need not look at it.
class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What travels with a task and never changes: our fields, and the arguments as JSON bytes that nobody rewrites.

    Attributes:
        skill: name of the handler; first, because the scripts read it there (`lua/includes/envelope.lua`).
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
    """Pack an envelope."""
    values = msgspec.structs.astuple(envelope)
    return _pack(values[:2] if values[2:] == _NO_OPTIONS else values)


def encode_plain(skill_and_args: tuple[str, bytes]) -> bytes:
    """Pack the envelope of a task without options: it ends after the arguments, and the decoder fills in the rest."""
    return _pack(skill_and_args)


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One attempt as an inbox hands it to a worker.

    Attributes:
        entry: id of the inbox entry.
        generation: the fence of the attempt; a verdict with an older one is refused.
        attempt: 1 for the first.
        deaths: how often a worker died with it.
        forgiven: failures from before it was requeued; they count no more.
        envelope: packed `Envelope`; empty when it is too large to travel and must be read from the task.
    """

    agent: str
    entry: str
    task_id: str
    generation: str
    attempt: int
    deaths: int
    envelope: bytes
    forgiven: int = 0

    @property
    def failures(self) -> int:
        """How many there are if this attempt fails too, since the task was submitted or requeued."""
        return self.attempt - self.deaths - self.forgiven


class VerdictKind(StrEnum):
    """What an attempt decided; `lua/tasks/finish.lua` says what each does."""

    SUCCEEDED = "succeeded"
    DEAD = "dead"
    RETRY = "retry"
    SNOOZE = "snooze"
    REQUEUE = "requeue"
    RELEASED = "released"
    ASK = "ask"
    CANCELLED = "cancelled"


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The end of one attempt.

    Attributes:
        payload: result as JSON, the traceback text of a failure, or a packed question.
        delay_ms: retry or snooze: wait so long; ask: the deadline.
        at_ms: snooze: wait until; ask: the deadline.
        reason: one line for people.
    """

    kind: VerdictKind
    payload: bytes = b""
    delay_ms: int = 0
    at_ms: int = 0
    reason: str = ""
    number: int = 0
    """Ask: which question of its task, from 1."""


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


class DeleteStatus(StrEnum):
    """What a delete did; `refused`: the task has not ended."""

    DELETED = "deleted"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class RequeueStatus(StrEnum):
    """What a retry did; already: it has not ended; refused: it succeeded; damaged: its record is of no use."""

    REQUEUED = "requeued"
    ALREADY = "already"
    REFUSED = "refused"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"


class EmitStatus(StrEnum):
    """What became of an emitted row."""

    OK = "ok"
    STALE = "stale"


class AnswerStatus(StrEnum):
    """What became of an answer; `lua/tasks/answer.lua` says what each means."""

    ANSWERED = "answered"
    ALREADY = "already"
    OTHER = "other"
    LATE = "late"
    NOT_ASKING = "not_asking"
    INVALID = "invalid"
    UNKNOWN = "unknown"


class WatchStatus(StrEnum):
    """How a task stands that somebody follows."""

    LIVE = "live"
    ENDED = "ended"
    SILENT = "silent"
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
class Progress:
    """How far an attempt has come, as its handler says.

    Attributes:
        done: in whatever unit the handler counts.
        total: of the same unit; None when nobody knows.
        message: for people.
    """

    done: float
    total: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """One piece of partial output.

    Attributes:
        id: where it stands; `output(after=id)` goes on behind it.
        attempt: which attempt emitted it, 1 for the first.
        number: counts the chunks of that attempt from 1; a gap means that older ones were dropped.
        at: when the server got it.
        data: the JSON value that was emitted.
    """

    id: str
    attempt: int
    number: int
    at: datetime
    data: Any


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """One step in the life of a task.

    Attributes:
        id: where it stands; `events(after=id)` goes on behind it.
        kind: `assigned`, `progress`, `output`, `retried`, `snoozed`, `given_back`, `taken_back`, `requeued`, `asked`,
            `answered`, `unanswered` (the deadline of its question has passed), or the final state; the first one may
            be `scheduled`, `ready` or `awaiting_input`, the state in which the task was found.
        attempt: the attempt that it belongs to; the next one when the task waits.
        at: when the server noted it.
        agent: of `assigned`: who got it.
        progress: of `progress`.
        number: of `output`: counts the chunks of the attempt from 1; of `asked`, `answered` and `unanswered`: which
            question of the task, from 1.
        data: of `output`: the JSON value that was emitted; of `answered`: the answer; of `asked`: the options, if it
            has any.
        reason: why it left an attempt or ended without a result; of `asked`: the question; of `answered`: who.
    """

    id: str
    kind: str
    attempt: int
    at: datetime
    agent: str | None = None
    progress: Progress | None = None
    number: int | None = None
    data: Any = None
    reason: str = ""

    @property
    def final(self) -> bool:
        """Whether the task has ended with it."""
        return self.kind in _FINAL


@dataclass(frozen=True, slots=True)
class Question:
    """A question that a task has asked a person.

    Attributes:
        number: counts the questions of the task from 1.
        options: JSON values; without any, every answer is allowed.
        until: its deadline, if it has one.
        answered: whether somebody has answered; `answer` is None before that, and may be None afterwards.
        answer: a JSON value.
        answered_by: who.
        answered_at: when; without an answer: when its deadline had passed.
        default: what stands for an answer when its deadline has passed; a JSON value, None when there is none.
    """

    number: int
    question: str
    asked_at: datetime
    options: tuple[Any, ...] = ()
    until: datetime | None = None
    default: Any = None
    answered: bool = False
    answer: Any = None
    answered_by: str = ""
    answered_at: datetime | None = None

    @property
    def open(self) -> bool:
        """Whether an answer is still missing."""
        return self.answered_at is None
