"""Reads what is stored of sessions: tasks, lanes, locks, workspace, chats, and the memories of their agents."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from typing import TYPE_CHECKING, Final

import anyio

from orchestrator.core.errors import NotFound, StoreError
from orchestrator.locks import scripts as locks
from orchestrator.locks.model import LockInfo  # noqa: TC001 - public dataclasses keep their types resolvable
from orchestrator.store.scoped import bind_scope
from orchestrator.tasks import families
from orchestrator.tasks.records import read_each
from orchestrator.views.chat import ChatView, list_chats
from orchestrator.views.families import list_session_tasks
from orchestrator.views.memory import count_records
from orchestrator.views.paging import LIMIT
from orchestrator.workspace.model import WorkspaceSize  # noqa: TC001 - public dataclasses keep their types resolvable
from orchestrator.workspace.queries import read_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.services import Services
    from orchestrator.tasks.families import SessionSummary
    from orchestrator.tasks.queries import TaskRow

SESSIONS_AT_ONCE: Final = 20
"""Sessions whose locks, workspaces and chats are read at the same time."""


@dataclass(frozen=True, slots=True)
class LastEvent:
    """The latest change of a session.

    Attributes:
        at: its time.
        what: `submitted`, a final state of a task, `workspace` or `chat`; in a list of sessions `task` for both.
        task: the task, if it is known.
    """

    at: datetime
    what: str
    task: str | None = None


@dataclass(frozen=True, slots=True)
class SessionRow:
    """A session in a list.

    Attributes:
        session: its id.
        last_active_at: last submit or end of one of its tasks.
        tasks: number of tasks that were submitted with it, without deleted ones.
        newest: its newest task.
        lane: lane of this task, or None.
        locks: number of locks that are held in it.
        workspace: number of items in its workspace.
        chat: number of messages in its chats.
        last_event: the latest change.
    """

    session: str
    last_active_at: datetime
    tasks: int
    newest: str
    lane: str | None
    locks: int
    workspace: int
    chat: int
    last_event: LastEvent


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session.

    Attributes:
        last_active_at: last submit or end of one of its tasks; None if it has no task, or if many other sessions were
            active since.
        tasks: number of tasks that were submitted with it, without deleted ones.
        states: number of its newest tasks in each state; tasks whose retention has passed do not count.
        dropped: oldest tasks that do not count there, because the list keeps the newest 1000.
        open_tasks: ids of those of its newest tasks that have not ended, newest first.
        lanes: number of these tasks in each lane.
        locks: the locks that are held in it.
        workspace: size of its workspace; None if there is none.
        chats: its chats by source.
        memories: number of records by tier, of each agent that its newest tasks had and that has records.
        last_event: the latest change; None if its time is unknown.
    """

    session: str
    last_active_at: datetime | None
    tasks: int
    states: dict[str, int]
    dropped: int
    open_tasks: tuple[str, ...]
    lanes: dict[str, int]
    locks: tuple[LockInfo, ...]
    workspace: WorkspaceSize | None
    chats: tuple[ChatView, ...]
    memories: dict[str, dict[str, int]]
    last_event: LastEvent | None


async def read_session(services: Services, session: str) -> SessionView:
    """Read a session.

    Raises:
        InvalidInput: that is no session.
        NotFound: nothing is stored of it.
    """
    found = await list_session_tasks(services, session, limit=families.KEPT_TASKS)
    held, workspace, chats = await _read_state(services, session)
    if not found.total and workspace is None and not chats:
        raise NotFound(f"nothing is stored of session {session!r}; `orc sessions list` lists sessions with tasks")
    agents = sorted({row.agent for row in found.rows if row.agent})
    return SessionView(
        session=session,
        last_active_at=await families.last_activity(services.store, session),
        tasks=found.total,
        states=dict(Counter(row.state.value for row in found.rows)),
        dropped=found.dropped,
        open_tasks=tuple(row.id for row in found.rows if not row.state.final),
        lanes=dict(Counter(row.lane for row in found.rows if row.lane is not None and not row.state.final)),
        locks=held,
        workspace=workspace,
        chats=chats,
        memories=await count_records(services, agents[:LIMIT]),
        last_event=_latest([*_of_tasks(found.rows), *_of_state(workspace, chats)]),
    )


async def list_session_rows(services: Services, *, limit: int = LIMIT) -> tuple[SessionRow, ...]:
    """Read the sessions with the latest submit or end of a task, with what they have, at most `limit`."""
    listed = await families.sessions(services.store, limit=limit)
    newest = await read_each(services.store, [one.newest for one in listed], "lane")
    rows: dict[str, SessionRow] = {}

    async def read(one: SessionSummary) -> None:
        held, workspace, chats = await _read_state(services, one.session)
        record = newest[one.newest]
        rows[one.session] = SessionRow(
            session=one.session,
            last_active_at=one.last_active_at,
            tasks=one.tasks,
            newest=one.newest,
            lane=None if isinstance(record, StoreError) else record.lane_name,
            locks=len(held),
            workspace=workspace.items if workspace is not None else 0,
            chat=sum(chat.messages for chat in chats),
            last_event=max([LastEvent(one.last_active_at, "task"), *_of_state(workspace, chats)], key=_order),
        )

    for first in range(0, len(listed), SESSIONS_AT_ONCE):
        async with anyio.create_task_group() as group:
            for one in listed[first : first + SESSIONS_AT_ONCE]:
                group.start_soon(read, one)
    return tuple(rows[one.session] for one in listed)


async def _read_state(
    services: Services, session: str
) -> tuple[tuple[LockInfo, ...], WorkspaceSize | None, tuple[ChatView, ...]]:
    scope = bind_scope(services.store, services.settings, "session", session)
    held = await services.store.call(locks.peek(scope.keys))
    return tuple(held), await read_size(scope), await list_chats(services, session)


def _of_tasks(rows: Sequence[TaskRow]) -> list[LastEvent]:
    ends = [LastEvent(row.ended_at, row.state.value, row.id) for row in rows if row.ended_at is not None]
    return [*ends, *(LastEvent(row.submitted_at, "submitted", row.id) for row in rows)]


def _of_state(workspace: WorkspaceSize | None, chats: Sequence[ChatView]) -> list[LastEvent]:
    changes = [LastEvent(chat.last_message_at, "chat") for chat in chats if chat.last_message_at is not None]
    if workspace is not None and workspace.changed_at is not None:
        changes.append(LastEvent(workspace.changed_at, "workspace"))
    return changes


def _latest(events: Sequence[LastEvent]) -> LastEvent | None:
    return max(events, key=_order, default=None)


def _order(event: LastEvent) -> tuple[datetime, str]:
    # Times are in ms, so a submit may have the time of another task's end; the newer task is the later one then.
    return event.at, event.task or ""
