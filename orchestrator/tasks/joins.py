"""Joins of a task as its record has them: what a task that joins others waits for, and which tasks join it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - part of a public value
from typing import TYPE_CHECKING

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.reading import read_text, read_whole
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.records import numbered_field

if TYPE_CHECKING:
    from orchestrator.tasks.records import TaskRecord


@dataclass(frozen=True, slots=True)
class TaskJoin:
    """The join with which a task waits.

    Attributes:
        number: of the join in its task, from 1.
        may_be_left: number of its tasks that may not have ended when it is over.
        ends_at_failure: whether the first failure of a task ends it.
        since: when the first attempt waited here.
        deadline: then `ctx.join` returns its `default`, or raises `JoinTimeout`; None for none.
    """

    number: int
    may_be_left: int
    ends_at_failure: bool
    since: datetime | None
    deadline: datetime | None


def join_of(record: TaskRecord) -> TaskJoin | None:
    """Return the join with which a task waits; None if it waits with none, or the record of the join is damaged."""
    words = read_text(record.field("join") or b"").split(" ")
    if record.state is not TaskState.JOINING or len(words) != 5:
        return None
    _, stored_number, may_be_left, ends_at_failure, _ = words
    number = read_whole(stored_number)
    if number < 1:
        return None
    stored = read_text(record.field(numbered_field("join", number)) or b"").split(" ")
    since_ms, deadline_ms = (read_whole(word) for word in (*stored, "", "")[:2])
    return TaskJoin(
        number=number,
        may_be_left=read_whole(may_be_left),
        ends_at_failure=ends_at_failure == "1",
        since=from_instant_ms(since_ms) if since_ms > 0 else None,
        deadline=from_instant_ms(deadline_ms) if deadline_ms > 0 else None,
    )


def joined_by(record: TaskRecord) -> tuple[str, ...]:
    """Return the tasks that join a task, or have joined it."""
    words = read_text(record.field("joined") or b"").split()
    # `+SECONDS` among them is how long the record of a task with followers is kept.
    return tuple(word for word in words if not word.startswith("+"))
