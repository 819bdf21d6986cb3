"""Reads sessions, their tasks, and the children of a task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from typing import TYPE_CHECKING

from orchestrator.core.errors import NotFound
from orchestrator.core.ids import check_task_id, encode_foreign
from orchestrator.tasks import families
from orchestrator.views.agents import LIMIT

if TYPE_CHECKING:
    from collections.abc import Collection

    from orchestrator.services import Services
    from orchestrator.tasks.families import Members, SessionSummary
    from orchestrator.tasks.model import TaskState


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session and its tasks.

    Attributes:
        last_active_at: last submit or end of one of its tasks; None if many other sessions were active since.
        tasks: number of tasks that were submitted with it, without deleted ones.
        states: number of its newest tasks in each state; tasks whose retention has passed do not count.
        dropped: oldest tasks that do not count there, because the list keeps the newest 1000.
    """

    session: str
    last_active_at: datetime | None
    tasks: int
    states: dict[str, int]
    dropped: int


async def read_session(services: Services, session: str) -> SessionView:
    """Read a session and count its tasks by state.

    Raises:
        InvalidInput: that is no session.
        NotFound: no list of its tasks is kept.
    """
    found = await list_session_tasks(services, session, limit=families.KEPT_MEMBERS)
    if not found.total:
        raise NotFound(f"no task of session {session!r} is known; `orc sessions list` lists sessions")
    states = Counter(row.state.value for row in found.rows)
    last_active_at = await families.last_activity(services.store, session)
    return SessionView(session, last_active_at, found.total, dict(states), found.dropped)


async def list_sessions(services: Services, *, limit: int = LIMIT) -> tuple[SessionSummary, ...]:
    """Read the sessions with the latest submit or end of a task, at most `limit`."""
    return tuple(await families.sessions(services.store, limit=limit))


async def list_session_tasks(
    services: Services, session: str, *, states: Collection[TaskState] = (), limit: int = LIMIT
) -> Members:
    """Read the newest tasks of a session, at most `limit`; with `states` only those in one of them.

    Raises:
        InvalidInput: that is no session.
    """
    encode_foreign("session", session)
    return await families.session_tasks(services.store, session, states=states, limit=limit)


async def list_children(
    services: Services, parent: str, *, states: Collection[TaskState] = (), limit: int = LIMIT
) -> Members:
    """Read the children of a task in the order of their submits, as `list_session_tasks`.

    Raises:
        InvalidInput: that is no id of a task.
    """
    return await families.children(services.store, check_task_id(parent), states=states, limit=limit)
