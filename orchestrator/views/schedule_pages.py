"""Reads the schedules page by page, with their next fire times and what became of their last tasks."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import InvalidInput
from orchestrator.core.reading import read_whole
from orchestrator.schedules import queries
from orchestrator.schedules.model import decode_plan, to_schedule
from orchestrator.schedules.timing import Cron, fires
from orchestrator.tasks.records import list_records
from orchestrator.views.paging import page_sorted

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.schedules.model import Schedule, ScheduleRecord
    from orchestrator.services import Services
    from orchestrator.tasks.model import TaskState

SCHEDULES: Final = 25
FIRES: Final = 3


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule.

    Attributes:
        words: its times in words.
        next_fires: the next ones; of a paused schedule none.
        last_state: state of its newest task; None without one, or if it is gone.
    """

    schedule: Schedule
    words: str
    next_fires: tuple[datetime, ...]
    last_state: TaskState | None


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """A part of the schedules, the next to fire first, paused ones last.

    Attributes:
        schedules: those of this page.
        damaged: names of those of this page whose record cannot be read.
        total: number of all.
    """

    schedules: tuple[ScheduleRow, ...]
    damaged: tuple[str, ...]
    cursor: str | None
    total: int


async def page_schedules(services: Services, *, after: str | None = None, limit: int = SCHEDULES) -> SchedulePage:
    """Read the schedules behind the cursor `after`."""
    page = await page_sorted(services, services.store.keys.schedules, after=after, limit=limit)
    records = await queries.records(services.store, [name for name, _ in page.members])
    read: list[tuple[Schedule, ScheduleRecord]] = []
    damaged: list[str] = []
    for (name, _), record in zip(page.members, records, strict=True):
        try:
            if record is None:
                raise InvalidInput("no record")  # noqa: TRY301 - both are shown as damaged
            read.append((to_schedule(record), record))
        except InvalidInput:
            damaged.append(name)
    last = [schedule.last_task for schedule, _ in read if schedule.last_task]
    states = {task.id: task.state for task in await list_records(services.store, dict.fromkeys(last))}
    rows = [_row(schedule, record, states.get(schedule.last_task or "")) for schedule, record in read]
    return SchedulePage(tuple(rows), tuple(damaged), page.cursor, page.total)


def _row(schedule: Schedule, record: ScheduleRecord, state: TaskState | None) -> ScheduleRow:
    words, following = schedule.when, list[int]()
    try:
        timing = decode_plan(record.plan).timing(record.anchor_ms)
        words = f"{timing.words}, {timing.zone}" if isinstance(timing, Cron) else words
        if schedule.next is not None:
            first = read_whole(record.next)
            following = [first, *islice(fires(timing, first), FIRES - 1)]
    except InvalidInput:  # this machine lacks the time zone
        following = []
    return ScheduleRow(schedule, words, tuple(map(from_instant_ms, following)), state)
