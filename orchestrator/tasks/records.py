"""What a task's record says of it, as far as lists and filters ask: read in batches, for any number of tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import InvalidInput, StoreError
from orchestrator.core.ids import decode_foreign
from orchestrator.tasks.model import Envelope, TaskState, decode_envelope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from orchestrator.store.store import Store

_FIELDS = ("state", "env", "queue", "at", "reason", "ended", "fails", "deaths", "lane", "cancel")


@dataclass(frozen=True, slots=True)
class TaskRecord:
    """One task, as it was when it was read.

    Attributes:
        state: as it is stored; whoever knows that a worker has read it says `running` or `cancelling`.
        agent: which had it last, or which it is addressed to.
        queue: where it waits when it waits: `skill:S` or `agent:A`.
        lane: encoded as in the key of the lane.
        attempts: failed ones and deaths.
        errors: tracebacks of the failed attempts; only if they were asked for.
    """

    id: str
    state: TaskState
    skill: str
    agent: str | None
    priority: int
    session: str | None
    tags: tuple[str, ...]
    queue: str
    reason: str
    attempts: int
    submitted_at: datetime
    ended_at: datetime | None
    lane: str | None = None
    errors: tuple[str, ...] = ()

    @property
    def at(self) -> datetime:
        """When it ended; when it was submitted, while it has not."""
        return self.ended_at or self.submitted_at


async def read_records(
    store: Store, found: Mapping[str, TaskState | None], *, errors: bool = False
) -> list[TaskRecord]:
    """Read the records of tasks, in their order; those that are gone, deleted or unreadable are left out.

    Args:
        store: where.
        found: ids, with a state where more is known than is stored (`running`).
        errors: also read the tracebacks.
    """
    replies = await store.pipeline([("HMGET", store.keys.task(id_), *_FIELDS) for id_ in found])
    records = {
        id_: _record(id_, known, reply)
        for (id_, known), reply in zip(found.items(), replies, strict=True)
        if not isinstance(reply, StoreError) and reply[0] is not None
    }
    if errors:
        records = await _with_errors(store, records)
    return list(records.values())


async def _with_errors(store: Store, records: Mapping[str, TaskRecord]) -> dict[str, TaskRecord]:
    failed = [record for record in records.values() if record.attempts]
    replies = await store.pipeline(
        [
            ("HMGET", store.keys.task(record.id), *[f"error:{number}" for number in range(1, record.attempts + 1)])
            for record in failed
        ]
    )
    read = dict(records)
    for record, reply in zip(failed, replies, strict=True):
        if not isinstance(reply, StoreError):
            texts = tuple(text.decode(errors="replace") for text in reply if text is not None)
            read[record.id] = replace(record, errors=texts)
    return read


def _record(id_: str, known: TaskState | None, reply: Sequence[Any]) -> TaskRecord:
    state, env, queue, at, reason, ended, fails, deaths, lane, cancel = reply
    envelope = readable_envelope(env)
    place = text(queue) or f"skill:{envelope.skill}"
    held_by = text(at).partition(" ")[0] or None
    stored = TaskState(state.decode())
    if known is TaskState.RUNNING and cancel is not None:
        known = TaskState.CANCELLING
    return TaskRecord(
        id=id_,
        state=known if known is not None and stored is TaskState.ASSIGNED else stored,
        skill=envelope.skill,
        agent=held_by or (place.removeprefix("agent:") if place.startswith("agent:") else None),
        priority=envelope.priority,
        session=envelope.session,
        tags=envelope.tags,
        queue=place,
        reason=text(reason),
        attempts=_count(fails) + _count(deaths),
        submitted_at=from_instant_ms(int(id_.replace("-", "")[:12], 16)),
        ended_at=None if ended is None else from_instant_ms(int(ended)),
        lane=None if lane is None else text(lane),
    )


def readable_envelope(data: bytes | None) -> Envelope:
    """Decode an envelope to show it; a damaged one becomes `(unreadable)`, so that it does not hide the other tasks."""
    try:
        return decode_envelope(data or b"")
    except msgspec.DecodeError:
        return Envelope(skill="(unreadable)", args=b"")


def _count(value: bytes | None) -> int:
    return int(value) if value is not None and value.isdigit() else 0


def record_fields(reply: list[Any]) -> dict[str, bytes]:
    """The fields of a record by name, from the reply of HGETALL."""
    return {name.decode(): value for name, value in zip(reply[::2], reply[1::2], strict=True)}


def numbered(record: dict[str, bytes], prefix: str) -> tuple[str, ...]:
    """The texts of the fields `PREFIX1`, `PREFIX2` ..., in order."""
    numbers = sorted(int(name.removeprefix(prefix)) for name in record if name.startswith(prefix))
    return tuple(text(record[f"{prefix}{number}"]) for number in numbers)


def text(value: bytes | None) -> str:
    """A stored text; empty when the field is missing."""
    return (value or b"").decode(errors="replace")


def lane_name(stored: bytes) -> str:
    """The name of a lane, as it was given."""
    try:
        return decode_foreign(text(stored))
    except InvalidInput:
        return text(stored)
