"""Defines the values of a task's life. Does not talk to Redis."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - public dataclasses keep their types resolvable
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from orchestrator.core.durations import MAX_DURATION_S
from orchestrator.core.reading import msgpack_reader


class TaskState(StrEnum):
    """State of a task. The last four are final."""

    SCHEDULED = "scheduled"
    AWAITING_TASKS = "awaiting_tasks"
    READY = "ready"
    ASSIGNED = "assigned"
    RUNNING = "running"
    CANCELLING = "cancelling"
    AWAITING_INPUT = "awaiting_input"
    JOINING = "joining"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def final(self) -> bool:
        """True when the task has ended; only a retry by an operator changes it."""
        return self in _FINAL

    @classmethod
    def _missing_(cls, value: object) -> TaskState | None:
        # Stored for a member of a lane that has not got the turn: ready, but in no queue.
        return cls.READY if value == WAITING else None


WAITING: Final = "waiting"
StoredState: TypeAlias = TaskState | Literal["waiting"]
_FINAL = frozenset({TaskState.SUCCEEDED, TaskState.DEAD, TaskState.CANCELLED, TaskState.EXPIRED})
STATE_OF_LETTER = {state.value[0]: state for state in _FINAL}
"""Final states by the first letter, which events and replies carry."""


# The bounds of what clients submit. A user who may only submit can store any envelope, and a worker must not wait for a
# timeout that is not finite.
_Name: TypeAlias = Annotated[str, Meta(max_length=128)]
_Foreign: TypeAlias = Annotated[str, Meta(max_length=256)]
_TaskId: TypeAlias = Annotated[str, Meta(max_length=64)]


class ResultPlace(msgspec.Struct, frozen=True, array_like=True):
    """A result of another task that a worker puts into the arguments of a task.

    Attributes:
        offset: of the `null` in the arguments that the result replaces, in bytes.
        task: the other task.
        default: JSON that takes the place of the result if the task has failed; None: it must have succeeded.
    """

    offset: Annotated[int, Meta(ge=0)]
    task: _TaskId
    default: bytes | None = None


# gc=False: these values hold no references that could form a cycle, so the garbage collector skips them.
class Envelope(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The immutable part of a task, with the arguments as JSON bytes.

    Attributes:
        skill: name of the skill; the first field, because scripts read it there.
        args: JSON object, UTF-8.
        priority: 0 to 9, lower first; for display, because the rank decides.
        session: session id.
        tags: labels.
        timeout_s: overrides the skill's time limit.
        max_attempts: overrides the skill's limit.
        key: idempotency key.
        parent: task that submitted this one.
        depth: 0 for a task without parent.
        trace: trace context of the submit (`orchestrator/tracing/header.py`); empty without one.
        root: first task of its family, if that is not its parent.
        fair: key whose share it counts for.
        results: results of other tasks that belong into the arguments, by their places.
    """

    skill: _Name
    args: bytes
    priority: Annotated[int, Meta(ge=0, le=9)] = 2
    session: _Foreign | None = None
    tags: Annotated[tuple[_Foreign, ...], Meta(max_length=1024)] = ()
    timeout_s: Annotated[float, Meta(gt=0, le=MAX_DURATION_S)] | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=1000)] | None = None
    key: _Foreign | None = None
    parent: _TaskId | None = None
    depth: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    trace: Annotated[str, Meta(max_length=8192)] = ""
    root: _TaskId | None = None
    fair: _Foreign | None = None
    results: tuple[ResultPlace, ...] = ()


decode_envelope = msgpack_reader(Envelope)
_pack = msgspec.msgpack.Encoder().encode
_TWO_VALUES: Final = b"\x92"
"""How MessagePack begins the envelope of a task without options."""
_LONG_ARRAY: Final = 0xDC
_SHORT_TEXT: Final = range(0xA0, 0xC0)
_LENGTH_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
"""By the byte with which longer texts and binary values of MessagePack begin."""
_NO_BYTES: Final = b"\xc4\x00"
"""An empty binary value of MessagePack."""
_NO_OPTIONS = msgspec.structs.astuple(Envelope("", b""))[2:-1]


def encode_envelope(envelope: Envelope) -> bytes:
    """Pack an envelope."""
    values = msgspec.structs.astuple(envelope)
    if envelope.results:
        return _pack(values)
    values = values[:-1]
    if envelope.fair is not None:
        return _pack(values)
    if envelope.root is not None:
        return _pack(values[:-1])
    if envelope.trace:
        return _pack(values[:-2])
    return _pack(values[:2] if values[2:] == _NO_OPTIONS else values[:-3])


def root_of(id_: str, envelope: Envelope) -> str | None:
    """Return the first task of a task's family, itself without a parent; None if an older program has submitted it."""
    if envelope.depth == 0:
        return id_
    return envelope.parent if envelope.depth == 1 else envelope.root


def encode_plain(skill_and_args: tuple[str, bytes]) -> bytes:
    """Pack the envelope of a task without options; it ends after the arguments, and the decoder adds the defaults."""
    return _pack(skill_and_args)


@lru_cache(maxsize=1024)
def _plain_without_arguments(skill: str) -> bytes:
    return encode_plain((skill, b""))


def without_arguments(packed: bytes, envelope: Envelope) -> bytes:
    """Pack what stays of the envelope of a success. Arguments are JSON, so empty ones were dropped.

    Args:
        packed: the envelope as delivered; empty if it was too large for the inbox.
        envelope: the same, decoded.
    """
    if packed.startswith(_TWO_VALUES):
        return _plain_without_arguments(envelope.skill)
    if not packed or envelope.results:
        return encode_envelope(msgspec.structs.replace(envelope, args=b"", results=()))
    # The arguments are cut out, because packing all options again takes a worker longer. They are the second value, and
    # `envelope` may have others in their place, which were stored apart.
    at = _behind(packed, 3 if packed[0] == _LONG_ARRAY else 1)
    return packed[:at] + _NO_BYTES + packed[_behind(packed, at) :]


def _behind(packed: bytes, at: int) -> int:
    """Return the place behind a text or a binary value of MessagePack."""
    kind = packed[at]
    if kind in _SHORT_TEXT:
        return at + 1 + kind - _SHORT_TEXT[0]
    start = at + 1 + _LENGTH_BYTES[kind]
    return start + int.from_bytes(packed[at + 1 : start], "big")


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One attempt as a worker reads it from an inbox.

    Attributes:
        entry: id of the inbox entry.
        generation: fence of the attempt; Redis rejects the verdict of an older one.
        attempt: 1 for the first.
        deaths: attempts whose worker died.
        forgiven_failures: failures from before it was requeued; not counted.
        envelope: packed `Envelope`; empty when it is too large for the inbox and must be read from the record.
        group: with how many suspects it may share a process, itself included; 0: it runs alone; None: no limit.
        depth: number of parents above it; known if `group` is.
    """

    agent: str
    entry: str
    task_id: str
    generation: str
    attempt: int
    deaths: int
    envelope: bytes
    forgiven_failures: int = 0
    group: int | None = None
    depth: int = 0

    @property
    def failures(self) -> int:
        """The number of failures if this attempt fails too, since the task was submitted or requeued."""
        return self.attempt - self.deaths - self.forgiven_failures


UNLIMITED: Final = -1
"""Of a snooze: the task may have any number of them."""


class VerdictKind(StrEnum):
    """Outcome of an attempt; `lua/tasks/finish.lua` applies it."""

    SUCCEEDED = "succeeded"
    DEAD = "dead"
    RETRY = "retry"
    SNOOZE = "snooze"
    REQUEUE = "requeue"
    RELEASED = "released"
    AWAIT_LOCK = "await_lock"
    ASK = "ask"
    JOIN = "join"
    CANCELLED = "cancelled"
    INVALID = "invalid"


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """The end of one attempt.

    Attributes:
        payload: result as JSON, traceback text of a failure, or a packed question.
        delay_ms: of a retry or snooze: the delay; of a question or a join: the deadline.
        at_ms: of a snooze: the time to run again; of a question or a join: the deadline.
        reason: one line for people.
    """

    kind: VerdictKind
    payload: bytes = b""
    delay_ms: int = 0
    at_ms: int = 0
    reason: str = ""
    number: int = 0
    """Of a question or a join: its number in the task, from 1. Of a snooze by the handler: how many it may have."""
    version: str = ""
    """Of invalid arguments: digest of the version of the skill that refused them."""
    names: tuple[str, ...] = ()
    """Of invalid arguments: their names."""
    began_ago_ms: int | None = None
    """Of an attempt that did not succeed: ms since it began, when the verdict is sent; None if it did not begin."""
    timed_out: bool = False
    """Whether the worker stopped the attempt at a time limit."""
    apart: bool = False
    """Whether the payload is a reference to a field of the record (`tasks/values.py`)."""
    envelope: bytes = b""
    """Of a success: takes the place of the stored envelope, packed without arguments; empty: the stored one stays."""


class FinishStatus(StrEnum):
    """Reply to a verdict."""

    OK = "ok"
    ALREADY = "already"
    STALE = "stale"
    LOST = "lost"


class LeaseStatus(StrEnum):
    """Reply to a renewal."""

    KEPT = "kept"
    LOST = "lost"
    CANCELLED = "cancelled"


class CancelStatus(StrEnum):
    """Reply to a cancel."""

    ENDED = "ended"
    SIGNALLED = "signalled"
    ALREADY = "already"
    UNKNOWN = "unknown"


class DeleteStatus(StrEnum):
    """Reply to a delete; `refused`: the task has not ended."""

    DELETED = "deleted"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class RequeueStatus(StrEnum):
    """Reply to a retry.

    already: the task has not ended; refused: it succeeded; damaged: its record, or the list of its predecessors, is
    unreadable.
    """

    REQUEUED = "requeued"
    ALREADY = "already"
    REFUSED = "refused"
    DAMAGED = "damaged"
    UNKNOWN = "unknown"


class EmitStatus(StrEnum):
    """Reply to an emitted row."""

    OK = "ok"
    STALE = "stale"


class AnswerStatus(StrEnum):
    """Reply to an answer; see `lua/tasks/answer.lua`."""

    ANSWERED = "answered"
    ALREADY = "already"
    OTHER = "other"
    LATE = "late"
    NOT_ASKING = "not_asking"
    INVALID = "invalid"
    UNKNOWN = "unknown"


class WatchStatus(StrEnum):
    """Status of a followed task."""

    LIVE = "live"
    ENDED = "ended"
    SILENT = "silent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Dispatched:
    """Result of one dispatch call.

    Attributes:
        count: tasks that were put into inboxes.
        left: another call may assign more.
        without: the argument of that call: agents in a row that could take no task.
        waits_us: per agent whose limits hold tasks back, microseconds until they allow the next start; 0: unknown.
    """

    count: int
    left: bool
    without: int
    waits_us: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Assigned:
    """Result of one assign call.

    Attributes:
        count: tasks that were put into inboxes.
        left: agents that can get more tasks now.
        waits_us: microseconds until a rate limit allows the next start, by agent whose tasks limits hold back.
    """

    count: int
    left: tuple[str, ...]
    waits_us: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Promoted:
    """Result of one promote call.

    Attributes:
        wait_s: seconds until the next task is due, or None if none is scheduled.
        left: more tasks are due now.
        cancels: tasks below cancelled ones are to be cancelled.
    """

    promoted: int
    expired: int
    wait_s: float | None
    left: bool
    cancels: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of an attempt, as its handler reports it.

    Attributes:
        done: amount done, in any unit.
        total: total amount in the same unit, or None if it is unknown.
        message: text for people.
    """

    done: float
    total: float | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """One piece of partial output.

    Attributes:
        id: its position; `output(after=id)` continues behind it.
        attempt: attempt that emitted it, 1 for the first.
        number: counts the chunks of that attempt from 1; a gap means that older chunks were dropped.
        at: when the server stored it.
        data: the emitted JSON value.
    """

    id: str
    attempt: int
    number: int
    at: datetime
    data: Any


@dataclass(frozen=True, slots=True)
class TaskEvent:
    """One event in the life of a task.

    Attributes:
        id: its position; `events(after=id)` continues behind it.
        kind: `assigned`, `progress`, `output`, `retried`, `snoozed`, `given_back`, `taken_back`, `requeued`, `asked`,
            `answered`, `unanswered` (the deadline of a question has passed), `effect` (a step of an effect), `joining`,
            `joined`, `join_timeout` (the deadline of a join has passed), or the final state. The first event may be
            `scheduled`, `ready`, `awaiting_tasks`, `awaiting_input` or `joining`: the state at that time.
        attempt: the attempt it belongs to; the next one while the task waits.
        at: when the server stored it.
        agent: of `assigned`: the agent.
        progress: of `progress`.
        number: of `output`: counts the chunks of the attempt from 1; of `asked`, `answered` and `unanswered`: the
            number of the question in its task, from 1.
        data: of `output`: the emitted JSON value; of `answered`: the answer; of `asked`: the options, if any.
        reason: reason of the end of the attempt, or of an end without a result; of `asked`: the question; of
            `answered`: the actor; of `effect`: its name, state, and a decision about an unknown outcome.
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
        """True when the task ended with it."""
        return self.kind in _FINAL


@dataclass(frozen=True, slots=True)
class Question:
    """A question that a task asks a person.

    Attributes:
        number: counts the questions of the task from 1.
        asked_at: time of the question.
        options: JSON values; without options, every answer is allowed.
        until: deadline, if any.
        answered: whether there is an answer; `answer` is None before, and may be None after.
        answer: JSON value.
        answered_by: actor.
        answered_at: time of the answer, or of the passed deadline.
        default: JSON value that replaces an answer after the deadline; None without a default.
        effect: name of the effect whose outcome is asked for; empty for a question of `ctx.ask`.
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
    effect: str = ""

    @property
    def open(self) -> bool:
        """True while it waits for an answer."""
        return self.answered_at is None
