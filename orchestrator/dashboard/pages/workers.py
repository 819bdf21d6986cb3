"""The workers of the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.dashboard.page import page
from orchestrator.views.workers import list_workers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

SHOWN = 200


@page("/workers", "workers.html")
async def workers(asked: PageRequest) -> Mapping[str, Any]:
    """Read the live workers, longest silent first."""
    return {"found": await list_workers(asked.services, limit=SHOWN)}
