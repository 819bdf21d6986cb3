"""Reads what a task that joins others waits for."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from orchestrator.core.errors import DamagedData, NotFound
from orchestrator.core.ids import check_task_id
from orchestrator.tasks.joins import TaskJoin, join_of, joined_by
from orchestrator.tasks.model import TaskState  # noqa: TC001 - a part of public values
from orchestrator.tasks.queries import mark_running
from orchestrator.tasks.records import LISTED, TaskRecord, numbered_field, read_command, read_record
from orchestrator.views.paging import page_sorted, read_together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.accounts.model import AccountScope
    from orchestrator.services import Services

MISSING: Final = 100
"""Missing tasks of a page."""
MOST_JOINS: Final = 16
"""Joins of a task whose records are read with it, so that one round trip is enough for most."""


@dataclass(frozen=True, slots=True)
class MissingTask:
    """A task that has not ended and that another one joins.

    Attributes:
        state, skill: None if it is gone, or hidden.
        hidden: the narrowed user who reads may not see it.
    """

    id: str
    state: TaskState | None
    skill: str | None
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class JoinPage:
    """The join of a task, and the tasks that join it.

    Attributes:
        join: None if it does not wait with a join.
        missing: its tasks that have not ended, in the order of the join.
        total: number of all of these.
        must_end: number of these that must still end, unless a failure ends the join.
        cursor: goes on behind `missing`; None at the end.
        joined_by: tasks that join this one, or have joined it, at most 20.
    """

    join: TaskJoin | None
    missing: tuple[MissingTask, ...]
    total: int
    must_end: int
    cursor: str | None
    joined_by: tuple[str, ...]


async def read_join(
    services: Services, id_: str, scope: AccountScope, *, after: str | None = None, limit: int = MISSING
) -> JoinPage:
    """Read the join of a task, and its missing tasks behind the cursor `after`, as a user of a scope sees them.

    Raises:
        InvalidInput: no id of a task, or no cursor of this list.
        NotFound: no such task, or its retention has passed.
    """
    fields = ("state", "join", "joined", *(numbered_field("join", number) for number in range(1, MOST_JOINS + 1)))
    record = await read_record(services.store, check_task_id(id_), *fields)
    if not record.exists:
        raise NotFound(f"task {id_} does not exist, or its retention has passed")
    join = join_of(record)
    if join is not None and join.number > MOST_JOINS:
        record = record.merged(await read_record(services.store, id_, numbered_field("join", join.number)))
        join = join_of(record)
    if join is None:
        return JoinPage(None, (), 0, 0, None, joined_by(record))
    page = await page_sorted(services, services.keys.joins(id_), after=after, limit=limit)
    ids = [member for member, _ in page.members]
    replies = await read_together(services, missing_reads(services, ids))
    return JoinPage(
        join,
        await missing_tasks(services, id_, ids, replies, scope),
        page.total,
        max(0, page.total - join.may_be_left),
        page.cursor,
        joined_by(record),
    )


def missing_reads(services: Services, ids: Sequence[str]) -> list[Sequence[Any]]:
    """Return the commands that read missing tasks, one for each, for `missing_tasks`."""
    return [read_command(services.keys, id_, *LISTED) for id_ in ids]


async def missing_tasks(
    services: Services, parent: str, ids: Sequence[str], replies: Sequence[Any], scope: AccountScope
) -> tuple[MissingTask, ...]:
    """Return the missing tasks of a parent from the replies to `missing_reads`, as a user of a scope sees them."""
    records = [
        TaskRecord.from_reply(id_, LISTED, reply or [None] * len(LISTED))
        for id_, reply in zip(ids, replies, strict=True)
    ]
    found = {record.id: _missing(parent, record, scope) for record in records}
    shown = [record for record in records if found[record.id].state is not None]
    for record in await mark_running(services.store, shown):
        found[record.id] = replace(found[record.id], state=record.state)
    return tuple(found.values())


def _missing(parent: str, record: TaskRecord, scope: AccountScope) -> MissingTask:
    with suppress(DamagedData):
        if record.exists:
            # A task may also join others than those below it.
            if record.envelope.parent == parent or scope.includes(
                agent=record.agent, queue=record.queue, session=record.session
            ):
                return MissingTask(record.id, record.state, record.skill)
            return MissingTask(record.id, None, None, hidden=True)
    return MissingTask(record.id, None, None, hidden=scope.narrowed)
