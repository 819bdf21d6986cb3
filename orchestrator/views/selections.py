"""Freezes the tasks that a bulk action is asked for, and reads what became of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from orchestrator.core.reading import read_text
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.queries import row_of
from orchestrator.tasks.records import list_records
from orchestrator.tasks.selecting import ENDED, OPEN, RETRYABLE, read_page, select
from orchestrator.views.paging import read_together

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from orchestrator.services import Services
    from orchestrator.tasks.queries import TaskRow
    from orchestrator.tasks.selecting import TaskFilter

MOST: Final = 1000
"""Tasks of one bulk action."""
UNASKED: Final = 20
"""Tasks that one bulk action may have without a name being typed, unless it is of class C."""
MOST_PURGED: Final = 10_000
"""Tasks of one purge."""
ITEMS: Final = 50
APPLIES_TO: Final[Mapping[str, Collection[TaskState]]] = {"cancel": OPEN, "retry": RETRYABLE, "delete": ENDED}
"""States of the tasks that an action applies to."""


@dataclass(frozen=True, slots=True)
class FrozenTasks:
    """The tasks that matched when the question was asked.

    Attributes:
        more: more tasks match, or may: not all were looked at.
        looked: tasks that were looked at.
    """

    ids: tuple[str, ...]
    more: bool
    looked: int


@dataclass(frozen=True, slots=True)
class JobItems:
    """A part of the tasks of a job.

    Attributes:
        items: id and, unless the task is gone, its row as it is now.
        first: number of the first of them, from 0.
        total: number of tasks that are kept: the first `MOST` of a job that has ended; none a day after its end.
    """

    items: tuple[tuple[str, TaskRow | None], ...]
    first: int
    total: int

    @property
    def next(self) -> int | None:
        """Number of the first task behind these, if there is one."""
        behind = self.first + len(self.items)
        return behind if self.items and behind < self.total else None


async def freeze_tasks(services: Services, action: str, wanted: TaskFilter) -> FrozenTasks:
    """Return the tasks in states that `action` applies to and that match a filter, at most `MOST`.

    The cost has a bound, however few tasks match.
    """
    states = frozenset(map(TaskState, wanted.states)) or frozenset(APPLIES_TO[action])
    meant = replace(wanted, states=tuple(sorted(states & frozenset(APPLIES_TO[action]))))
    if not meant.states:
        return FrozenTasks((), more=False, looked=0)
    page = await read_page(services.store, meant, limit=MOST)
    return FrozenTasks(tuple(row.id for row in page.tasks), page.cursor is not None, page.looked)


async def select_waiting(services: Services, wanted: TaskFilter) -> tuple[list[str], bool]:
    """Return the ready tasks of a queue that match a filter, at most `MOST_PURGED`, and whether there are more."""
    found = await select(services.store, wanted, among={TaskState.READY}, limit=MOST_PURGED)
    return found.ids, found.more


async def read_job_items(services: Services, command: str, *, first: int = 0) -> JobItems:
    """Read the tasks of a job from number `first` on, as they are now."""
    key = services.store.keys.selection(command)
    ids, total = await read_together(services, [("LRANGE", key, first, first + ITEMS - 1), ("LLEN", key)])
    names = [read_text(id_) for id_ in ids or ()]
    rows = {one.id: row_of(one, one.state) for one in await list_records(services.store, dict.fromkeys(names))}
    return JobItems(tuple((id_, rows.get(id_)) for id_ in names), first, total or 0)


async def server_time(services: Services) -> datetime:
    """Read the clock of the server."""
    from orchestrator.core.durations import from_instant_ms
    from orchestrator.tasks.queries import server_ms

    return from_instant_ms(await server_ms(services.store))
