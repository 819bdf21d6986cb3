"""Reads the workers page by page, and one worker with the tasks that it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orchestrator.agents import queries
from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import NotFound
from orchestrator.core.ids import check_name
from orchestrator.core.reading import read_text, read_whole
from orchestrator.core.slots import drain_slot
from orchestrator.tasks.inbox import GROUP
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.queries import row_of
from orchestrator.tasks.records import list_records
from orchestrator.views.active_commands import desired_reads, of_slots, parse_desired, time_ms
from orchestrator.views.paging import MOST_NAMES, cut, read_together

if TYPE_CHECKING:
    from datetime import datetime

    from orchestrator.agents.model import WorkerInfo
    from orchestrator.services import Services
    from orchestrator.tasks.queries import TaskRow
    from orchestrator.views.active_commands import ActiveCommandView

WORKERS: Final = 50
TASKS: Final = 50
"""Tasks of a worker that its page shows."""
MOST_AGENTS: Final = 50
"""Agents of a worker whose inboxes its page looks into."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A live worker."""

    worker: WorkerInfo
    active_commands: tuple[ActiveCommandView, ...]


@dataclass(frozen=True, slots=True)
class WorkerPage:
    """A part of the live workers by id; the fields are those of `NamePage`.

    Attributes:
        silent: the id of the worker that has been silent for the longest time, and its last heartbeat.
    """

    workers: tuple[WorkerRow, ...]
    cursor: str | None
    looked: int
    more: bool
    silent: tuple[str, datetime] | None


@dataclass(frozen=True, slots=True)
class HeldTask:
    """A task that a worker has; `since` is when it read or last renewed it."""

    task: TaskRow
    since: datetime


@dataclass(frozen=True, slots=True)
class WorkerDetail:
    """One live worker and the first `TASKS` of its tasks."""

    row: WorkerRow
    tasks: tuple[HeldTask, ...]


async def page_workers(
    services: Services, *, after: str | None = None, starts: str = "", limit: int = WORKERS
) -> WorkerPage:
    """Read the live workers behind the cursor `after` whose ids begin with `starts`."""
    keys = services.store.keys
    names, *desired = await read_together(
        services, [("ZRANGE", keys.workers, 0, MOST_NAMES - 1, "WITHSCORES"), *desired_reads(services)]
    )
    names, now = names or (), parse_desired(services, *desired)
    heartbeats = {read_text(name): read_whole(at) for name, at in zip(names[::2], names[1::2], strict=True)}
    page = cut([name for name in heartbeats if name.startswith(starts)], after=after, limit=limit)
    records = await read_together(services, [("HGETALL", keys.worker(id_)) for id_ in page.names])
    rows = [
        WorkerRow(worker, of_slots(now, drain_slot("worker", id_)))
        for id_, record in zip(page.names, records, strict=True)
        if (worker := queries.worker_of(id_, heartbeats[id_], record or ())) is not None
    ]
    oldest = next(((id_, from_instant_ms(at)) for id_, at in heartbeats.items()), None)
    return WorkerPage(tuple(rows), page.cursor, page.looked, len(heartbeats) >= MOST_NAMES, oldest)


async def read_worker_page(services: Services, id_: str) -> WorkerDetail:
    """Read one live worker by its whole id, and the tasks that it has.

    Raises:
        NotFound: there is none.
    """
    keys = services.store.keys
    check_name("worker", id_)
    heartbeat, record, *desired = await read_together(
        services, [("ZSCORE", keys.workers, id_), ("HGETALL", keys.worker(id_)), *desired_reads(services)]
    )
    worker = None if heartbeat is None else queries.worker_of(id_, read_whole(heartbeat), record or ())
    if worker is None:
        raise NotFound(f"no live worker has the id {id_!r}; it has ended, or its heartbeats stay away")
    now_ms = time_ms(desired[1])
    inboxes = [keys.inbox(agent) for agent in list(worker.agents)[:MOST_AGENTS]]
    pending = await read_together(services, [("XPENDING", key, GROUP, "-", "+", TASKS, id_) for key in inboxes])
    held = [(key, read_text(row[0]), row[2]) for key, rows in zip(inboxes, pending, strict=True) for row in rows or ()]
    entries = await read_together(services, [("XRANGE", key, entry, entry) for key, entry, _ in held[:TASKS]])
    idle_ms = {
        read_text(dict(zip(found[0][1][::2], found[0][1][1::2], strict=False)).get(b"t")): read_whole(idle)
        for (_, _, idle), found in zip(held, entries, strict=False)
        if found
    }
    records = await list_records(services.store, dict.fromkeys(idle_ms, TaskState.RUNNING))
    row = WorkerRow(worker, of_slots(parse_desired(services, *desired), drain_slot("worker", id_)))
    tasks = [HeldTask(row_of(one, one.state), from_instant_ms(now_ms - idle_ms[one.id])) for one in records]
    return WorkerDetail(row, tuple(tasks))
