"""The queues, and why the first task of each waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.dashboard.page import page
from orchestrator.views.queues import list_queues

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

SHOWN = 100


@page("/queues", "queues.html")
async def queues(asked: PageRequest) -> Mapping[str, Any]:
    """Read the queues that hold tasks, are paused or drained."""
    return {"found": await list_queues(asked.services, limit=SHOWN)}
