"""Commands: who gave which one when and why, and who has answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.dashboard.page import page
from orchestrator.views.active_commands import read_desired, view
from orchestrator.views.control import list_commands, read_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

SHOWN = 50


@page("/control", "control.html")
async def control(asked: PageRequest) -> Mapping[str, Any]:
    """Read the newest commands and the active ones."""
    now = await read_desired(asked.services)
    return {
        "commands": await list_commands(asked.services, limit=SHOWN),
        "active": [view(one) for _, one in sorted(now.active.items())[:SHOWN]],
        "active_total": len(now.active),
    }


@page("/control/{id}", "command.html")
async def command(asked: PageRequest) -> Mapping[str, Any]:
    """Read one command and its receipts."""
    found = await read_command(asked.services, asked.path["id"])
    return {"command": found, "replayed": asked.text("replayed") is not None}
