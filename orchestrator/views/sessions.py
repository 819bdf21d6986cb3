"""Reads what is stored of one session: tasks, workspace, chats, and the memories of its agents."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime  # noqa: TC003 - public dataclasses keep their types resolvable
from typing import TYPE_CHECKING

from orchestrator.core.errors import NotFound
from orchestrator.store.scoped import bind_scope
from orchestrator.tasks import families
from orchestrator.views.agents import LIMIT
from orchestrator.views.chat import ChatView, list_chats
from orchestrator.views.families import list_session_tasks
from orchestrator.views.memory import count_records
from orchestrator.workspace.model import WorkspaceSize  # noqa: TC001 - public dataclasses keep their types resolvable
from orchestrator.workspace.queries import read_size

if TYPE_CHECKING:
    from orchestrator.services import Services


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
        workspace: size of its workspace; None if there is none.
        chats: its chats by source.
        memories: number of records by tier, of each agent that its newest tasks had and that has records.
    """

    session: str
    last_active_at: datetime | None
    tasks: int
    states: dict[str, int]
    dropped: int
    open_tasks: tuple[str, ...]
    workspace: WorkspaceSize | None
    chats: tuple[ChatView, ...]
    memories: dict[str, dict[str, int]]


async def read_session(services: Services, session: str) -> SessionView:
    """Read a session.

    Raises:
        InvalidInput: that is no session.
        NotFound: nothing is stored of it.
    """
    found = await list_session_tasks(services, session, limit=families.KEPT_MEMBERS)
    workspace = await read_size(bind_scope(services.store, services.settings, "session", session))
    chats = await list_chats(services, session)
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
        workspace=workspace,
        chats=chats,
        memories=await count_records(services, agents[:LIMIT]),
    )
