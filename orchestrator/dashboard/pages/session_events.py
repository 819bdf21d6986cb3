"""The event log of a session: who changed what in its workspace, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.dashboard.page import page
from orchestrator.dashboard.pages.session_workspace import check_event
from orchestrator.dashboard.texts import Texts, as_command
from orchestrator.dashboard.workspace_rows import KINDS, event_rows, session_of
from orchestrator.views.workspaces import read_event_page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

FILTERS: Final = ("kind", "agent", "name")


@page("/sessions/events", "session_events.html", narrowed=True)
async def events(asked: PageRequest) -> Mapping[str, Any]:
    """Read one page of the events that match the query, and say how far it looked."""
    id_, texts = session_of(asked), Texts()
    filters = {name: value for name in FILTERS if (value := asked.text(name))}
    found = await read_event_page(
        asked.services,
        id_,
        before=check_event(asked.text("after")),
        kind=filters.get("kind"),
        agent=filters.get("agent"),
        name=filters.get("name"),
    )
    return {
        "id": id_,
        "found": found,
        "rows": event_rows(texts, found.events),
        "filters": filters,
        "kinds": KINDS,
        "without": asked.without,
        "commands": [as_command("orc", "workspace", "events", id_)],
    }
