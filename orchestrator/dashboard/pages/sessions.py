"""The sessions, the latest activity first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.core.slots import parse_slot
from orchestrator.dashboard.page import page
from orchestrator.dashboard.texts import as_command
from orchestrator.views.active_commands import read_desired
from orchestrator.views.session_list import SHOWN, read_session_page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest


@page("/sessions", "sessions.html", narrowed=True)
async def sessions(asked: PageRequest) -> Mapping[str, Any]:
    """Read one page of the sessions whose id contains a text, and say how far it looked."""
    contains = asked.text("contains")
    scope = asked.identity.scope
    among = scope.sessions if scope.narrowed else None
    found = await read_session_page(asked.services, contains=contains, among=among, after=asked.text("after"))
    desired = await read_desired(asked.services)
    return {
        "found": found,
        "contains": contains,
        "stopped": {slot.name for slot in map(parse_slot, desired.active) if slot[:2] == ("stop", "session")},
        "without": asked.without,
        "commands": [as_command("orc", "sessions", "list", "--limit", str(SHOWN))],
    }
