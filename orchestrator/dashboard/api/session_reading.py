"""Answers GET with JSON about sessions: their workspaces, chats and memories.

The id of a session may be any text, so it is in the query.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from anyio import to_thread

from orchestrator.dashboard.api.operation import AFTER, QueryParameter, limit, reading, size_of
from orchestrator.dashboard.pages import session_chat, session_memory
from orchestrator.dashboard.pages.session_workspace import check_event
from orchestrator.dashboard.texts import Texts, without_secrets
from orchestrator.dashboard.workspace_rows import KINDS, EventRow, event_rows, session_of
from orchestrator.memory.model import TIERS
from orchestrator.views import session_list, session_summary, workspaces
from orchestrator.views.chat import ChatLine, list_chat_lines, read_chat_page
from orchestrator.views.memory import RecordPage, count_records
from orchestrator.views.session_summary import newest_agents

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.chat.model import StoredMessage
    from orchestrator.dashboard.page import PageRequest

SESSION: Final = QueryParameter("id", "Id of the session; any text.", required=True)


@reading(
    "/sessions",
    session_list.SessionListPage,
    AFTER,
    limit(session_list.SHOWN),
    QueryParameter("contains", "Only sessions whose id contains this text."),
    checks_scope=True,
)
async def sessions(asked: PageRequest) -> session_list.SessionListPage:
    """Read the sessions, the latest activity first."""
    scope = asked.identity.scope
    return await session_list.read_session_page(
        asked.services,
        contains=asked.text("contains"),
        among=scope.sessions if scope.narrowed else None,
        after=asked.text("after"),
        limit=size_of(asked, session_list.SHOWN),
    )


@reading("/sessions/one", session_summary.SessionSummaryView, SESSION, checks_scope=True)
async def session(asked: PageRequest) -> session_summary.SessionSummaryView:
    """Read one session: its newest tasks, locks, stops and sizes."""
    return await session_summary.read_session_summary(asked.services, session_of(asked))


@reading("/sessions/workspace", workspaces.WorkspaceOutline, SESSION, checks_scope=True)
async def workspace(asked: PageRequest) -> workspaces.WorkspaceOutline:
    """Read what the workspace of a session holds, without values."""
    return await workspaces.read_outline(asked.services, session_of(asked))


@dataclass(frozen=True, slots=True)
class PathReply:
    """A path of a document.

    Attributes:
        agent: agent that wrote it, or empty if none did.
        value: JSON value; secrets in it are masked.
    """

    path: str
    version: int
    agent: str
    value: Any


@reading("/sessions/path", PathReply, SESSION, QueryParameter("path", "The path.", required=True), checks_scope=True)
async def document_path(asked: PageRequest) -> PathReply:
    """Read the value of one path of the document of a session."""
    name = asked.query["path"]
    held, _ = await workspaces.read_path(asked.services, session_of(asked), name)
    value = await to_thread.run_sync(without_secrets, held.value, name)  # it may have a megabyte
    return PathReply(name, held.version, held.agent, value)


@dataclass(frozen=True, slots=True)
class DocumentPath:
    """A path of a document without its value; `version` is None if it is larger than 4 KiB or damaged."""

    path: str
    bytes: int
    version: int | None


@dataclass(frozen=True, slots=True)
class DocumentPaths:
    """Some paths by name; `cursor` is for the next page, None at the end."""

    paths: tuple[DocumentPath, ...]
    cursor: str | None


@reading(
    "/sessions/document",
    DocumentPaths,
    SESSION,
    AFTER,
    QueryParameter("contains", "Only paths that contain this text."),
    checks_scope=True,
)
async def document(asked: PageRequest) -> DocumentPaths:
    """Read the paths of the document of a session."""
    id_ = session_of(asked)
    outline = await workspaces.read_outline(asked.services, id_)
    found = await workspaces.read_document(
        asked.services, id_, outline, after=asked.query.get("after") or None, contains=asked.text("contains")
    )
    paths = (DocumentPath(one.name, one.bytes, getattr(one.entry, "version", None)) for one in found.items)
    return DocumentPaths(tuple(paths), found.cursor)


@dataclass(frozen=True, slots=True)
class SessionEvents:
    """Some events of a workspace, newest first; each says its first changes in words.

    Attributes:
        cursor: for the next page; None at the end.
        looked: number of events that were read.
    """

    events: tuple[EventRow, ...]
    cursor: str | None
    looked: int


@reading(
    "/sessions/events",
    SessionEvents,
    SESSION,
    AFTER,
    QueryParameter("kind", "Only events of this kind.", choices=KINDS),
    QueryParameter("agent", "Only events of this agent."),
    QueryParameter("name", "Only events about this name."),
    checks_scope=True,
)
async def session_events(asked: PageRequest) -> SessionEvents:
    """Read who changed what in the workspace of a session."""
    found = await workspaces.read_event_page(
        asked.services,
        session_of(asked),
        before=check_event(asked.text("after")),
        kind=asked.text("kind"),
        agent=asked.text("agent"),
        name=asked.text("name"),
    )
    return SessionEvents(tuple(event_rows(Texts(), found.events)), found.cursor, found.looked)


@dataclass(frozen=True, slots=True)
class ChatMessages:
    """Chats of a session, and messages of one of them.

    Attributes:
        chats: the first 50 that hold messages, by source.
        source: source of the chat that the messages are of.
        messages: oldest first; secrets are masked.
        cursor: number before which the next page goes on; None at the beginning of the chat.
        looked: number of entries that were read.
    """

    chats: tuple[ChatLine, ...]
    source: str
    messages: tuple[StoredMessage, ...]
    cursor: int | None
    looked: int


@reading(
    "/sessions/chat",
    ChatMessages,
    SESSION,
    AFTER,
    QueryParameter("source", "Source of the chat; by default the first."),
    checks_scope=True,
)
async def chat(asked: PageRequest) -> ChatMessages:
    """Read the chats of a session, and a page of the messages of one, the newest page first."""
    id_ = session_of(asked)
    chats = await list_chat_lines(asked.services, id_)
    source = session_chat.source_of(asked, chats)
    found = await read_chat_page(asked.services, id_, source, before=session_chat.number_before(asked))
    return ChatMessages(chats, source, found.messages, found.cursor, found.looked)


@dataclass(frozen=True, slots=True)
class MemoryCounts:
    """Agents of the newest tasks of a session, and the number of records of those that have some, by tier."""

    agents: tuple[str, ...]
    counts: Mapping[str, Mapping[str, int]]


@reading("/sessions/memory", MemoryCounts, SESSION, checks_scope=True)
async def memories(asked: PageRequest) -> MemoryCounts:
    """Count the records of the agents that the newest tasks of a session had."""
    agents = await newest_agents(asked.services, session_of(asked), limit=session_memory.AGENTS)
    return MemoryCounts(agents, await count_records(asked.services, agents))


@reading(
    "/memory",
    RecordPage,
    AFTER,
    *(QueryParameter(name, f"Memory of this {name}; give one owner.") for name in session_memory.OWNERS),
    QueryParameter("kind", "Only records of this kind."),
    QueryParameter("tier", "Only records of this tier.", choices=TIERS),
    checks_scope=True,
)
async def memory(asked: PageRequest) -> RecordPage:
    """Read one page of the records of a memory, without vectors; secrets are masked."""
    return await session_memory.read_records(asked, session_memory.owner_of(asked))
