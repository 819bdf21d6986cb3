"""The agents of the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.dashboard.page import page
from orchestrator.views.agents import list_agents

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

SHOWN = 100


@page("/agents", "agents.html")
async def agents(asked: PageRequest) -> Mapping[str, Any]:
    """Read the agents with the latest heartbeats."""
    return {"found": await list_agents(asked.services, limit=SHOWN)}
