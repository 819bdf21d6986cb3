"""The first page: is the pool healthy, what needs a person, where is work waiting, what was ordered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.dashboard.page import page
from orchestrator.views.backlog import read_backlog
from orchestrator.views.control import list_commands
from orchestrator.views.queue_pages import page_queues
from orchestrator.views.status import read_status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

SHOWN = 20


@page("/", "overview.html")
async def overview(asked: PageRequest) -> Mapping[str, Any]:
    """Read the state of the pool."""
    status = await read_status(asked.services, limit=SHOWN)
    backlogs = await read_backlog(asked.services)
    return {
        "status": status,
        "backlog": backlogs.pool,
        "queues": await page_queues(asked.services, limit=10),
        "commands": await list_commands(asked.services, limit=5),
    }
