"""Reads one session in bounded reads: its newest tasks with their attempts, its locks, stops and sizes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.durations import from_instant_ms
from orchestrator.core.errors import DamagedData, NotFound, StoreError
from orchestrator.core.ids import encode_foreign
from orchestrator.core.reading import read_as, read_text, read_whole
from orchestrator.core.slots import STOP_ALL, stop_slot
from orchestrator.locks import scripts as locks
from orchestrator.locks.model import LockInfo  # noqa: TC001 - public dataclasses keep their types resolvable
from orchestrator.store.keys import CHANGES, CHATS, DIRECTORY, META
from orchestrator.store.scoped import bind_scope
from orchestrator.tasks.history import KEPT_ATTEMPTS, TaskAttempt
from orchestrator.tasks.model import TaskState  # noqa: TC001 - public dataclasses keep their types resolvable
from orchestrator.tasks.queries import mark_running
from orchestrator.tasks.records import LISTED, TaskRecord, numbered_field, read_each
from orchestrator.views.active_commands import ActiveCommandView, of_slots, read_desired
from orchestrator.workspace.queries import entry_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.services import Services

NEWEST_TASKS: Final = 60
LOCKS: Final = 100
_FIELDS: Final = (*LISTED, "gen", "ran", *(numbered_field("ran", n) for n in range(1, KEPT_ATTEMPTS + 1)))


@dataclass(frozen=True, slots=True)
class SessionTask:
    """A task of a session.

    Attributes:
        attempts: that its record keeps, oldest first, and the present one.
        lane: its lane.
        reason: as of `TaskRow`.
    """

    id: str
    state: TaskState
    skill: str
    agent: str | None
    submitted_at: datetime
    ended_at: datetime | None
    attempts: tuple[TaskAttempt, ...]
    lane: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that is held.

    Attributes:
        lock: the lock.
        since: when the attempt that holds it was assigned; None for a named lock, which does not tell, and for tasks
            that are not among the newest.
        until: when it lapses unless it is renewed, by the clock of Redis.
    """

    lock: LockInfo
    since: datetime | None
    until: datetime


@dataclass(frozen=True, slots=True)
class SessionSummaryView:
    """A session as its page shows it.

    Attributes:
        session: its id.
        now: time of Redis.
        last_active_at: last submit or end of one of its tasks; None if it has no task.
        total: number of tasks that were submitted with it, without deleted ones.
        tasks: the newest of them that have a record, newest first.
        looked: number of tasks that were read for that.
        locks: the locks that are held in it.
        stops: the stops that are active for it: of this session, or of everything.
        items: number of items of its workspace.
        bytes: their size.
        revision: number of changes of its workspace.
        events: number of stored events of its workspace.
        changed_at: time of the last event.
        ends_at: when the workspace expires.
        present: number of agents in its directory, maybe with some whose lease has ended.
        chats: number of its chats.
    """

    session: str
    now: datetime
    last_active_at: datetime | None
    total: int
    tasks: tuple[SessionTask, ...]
    looked: int
    locks: tuple[HeldLock, ...]
    stops: tuple[ActiveCommandView, ...]
    items: int
    bytes: int
    revision: int
    events: int
    changed_at: datetime | None
    ends_at: datetime | None
    present: int
    chats: int

    @property
    def states(self) -> dict[str, int]:
        """Number of the tasks that were read in each state."""
        return dict(Counter(task.state.value for task in self.tasks))

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents of the tasks that were read, sorted."""
        of_attempts = (one.agent for task in self.tasks for one in task.attempts)
        return tuple(sorted({name for name in (*of_attempts, *(task.agent for task in self.tasks)) if name}))


async def read_session_summary(services: Services, session: str) -> SessionSummaryView:
    """Read a session.

    Raises:
        InvalidInput: that is no session.
        NotFound: nothing is stored of it.
    """
    encode_foreign("session", session)
    scope = bind_scope(services.store, services.settings, "session", session)
    held: list[LockInfo] = []
    stops: list[ActiveCommandView] = []

    async def read_locks() -> None:
        held.extend(await services.store.call(locks.peek(scope.keys, limit=LOCKS)))

    async def read_stops() -> None:
        found = await read_desired(services)
        stops.extend(of_slots(found, STOP_ALL, stop_slot("session", session)))

    async with anyio.create_task_group() as group:
        group.start_soon(read_locks)
        group.start_soon(read_stops)
        counts = await _read_counts(services, session)
        tasks = await _read_tasks(services, counts.ids)
    if not counts.total and not counts.revision and not counts.chats and not held and not stops:
        raise NotFound(f"nothing is stored of session {session!r}; `orc sessions list` lists sessions with tasks")
    began = {task.id: task.attempts[-1].assigned_at for task in tasks if task.attempts and task.ended_at is None}
    return SessionSummaryView(
        session=session,
        now=counts.now,
        last_active_at=counts.last_active_at,
        total=counts.total,
        tasks=tuple(tasks),
        looked=len(counts.ids),
        locks=tuple(
            HeldLock(one, began.get(one.task or ""), counts.now + timedelta(milliseconds=one.left_ms)) for one in held
        ),
        stops=tuple(stops),
        items=counts.items,
        bytes=counts.bytes,
        revision=counts.revision,
        events=counts.events,
        changed_at=counts.changed_at,
        ends_at=counts.ends_at,
        present=counts.present,
        chats=counts.chats,
    )


async def newest_agents(services: Services, session: str, *, limit: int) -> tuple[str, ...]:
    """Return the agents of the newest tasks of a session, sorted, at most `limit`.

    Raises:
        InvalidInput: that is no session.
    """
    ids = await services.store.execute("LRANGE", services.keys.session(session), -NEWEST_TASKS, -1)
    records = (await read_each(services.store, map(read_text, ids), *LISTED)).values()
    found = {record.agent for record in records if isinstance(record, TaskRecord) and record.exists}
    return tuple(sorted(name for name in found if name))[:limit]


@dataclass(frozen=True, slots=True)
class _Counts:
    now: datetime
    last_active_at: datetime | None
    total: int
    ids: tuple[str, ...]
    items: int
    bytes: int
    revision: int
    events: int
    changed_at: datetime | None
    ends_at: datetime | None
    present: int
    chats: int


async def _read_counts(services: Services, session: str) -> _Counts:
    keys, encoded = services.keys, encode_foreign("session", session)
    scope = keys.scope("session", session)
    replies = await services.store.pipeline(
        [
            ("TIME",),
            ("ZSCORE", keys.sessions, encoded),
            ("LLEN", keys.session(session)),
            ("LRANGE", keys.session(session), -NEWEST_TASKS, -1),
            ("HGET", keys.dropped_of_sessions, encoded),
            ("HMGET", scope.key(META), "rev", "items", "bytes", "dies"),
            ("XLEN", scope.key(CHANGES)),
            ("XREVRANGE", scope.key(CHANGES), "+", "-", "COUNT", 1),
            ("ZCARD", scope.key(DIRECTORY)),
            ("HLEN", scope.key(CHATS)),
        ]
    )
    time = replies[0]
    if isinstance(time, StoreError):
        raise time
    # A damaged key counts as an empty one.
    active, length, ids, dropped, meta, events, last, present, chats = [
        None if isinstance(reply, StoreError) else reply for reply in replies[1:]
    ]
    revision, items, size, dies = map(read_whole, meta or (0, 0, 0, 0))
    return _Counts(
        now=from_instant_ms(read_whole(time[0]) * 1000 + read_whole(time[1]) // 1000),
        last_active_at=None if active is None else from_instant_ms(read_whole(active)),
        total=read_whole(length) + read_whole(dropped),
        ids=tuple(map(read_text, reversed(ids or []))),
        items=items,
        bytes=size,
        revision=revision,
        events=read_whole(events),
        changed_at=entry_time(read_text(last[0][0])) if last else None,
        ends_at=from_instant_ms(dies) if dies else None,
        present=read_whole(present),
        chats=read_whole(chats),
    )


async def _read_tasks(services: Services, ids: Sequence[str]) -> list[SessionTask]:
    records = await read_each(services.store, ids, *_FIELDS)
    known = [record for record in records.values() if isinstance(record, TaskRecord) and _is_readable(record)]
    return [_task(record) for record in await mark_running(services.store, known)]


def _is_readable(record: TaskRecord) -> bool:
    try:
        return record.exists and bool(record.state)
    except DamagedData:
        return False


def _task(record: TaskRecord) -> SessionTask:
    try:
        attempts = read_as("attempts", record.history, record.state)
    except DamagedData:
        attempts = ()
    return SessionTask(
        id=record.id,
        state=record.state,
        skill=record.skill,
        agent=record.agent,
        submitted_at=record.submitted_at,
        ended_at=record.ended_at,
        attempts=attempts,
        lane=record.lane_name,
        reason=record.reason,
    )
