"""The agents of the pool, and one agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.dashboard.page import page
from orchestrator.dashboard.rendering import command_line
from orchestrator.views.agent_pages import MINUTES, page_agents, read_agent_page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest


@page("/agents", "agents.html")
async def agents(asked: PageRequest) -> Mapping[str, Any]:
    """Read the agents by name."""
    starts = asked.text("starts") or ""
    return {
        "found": await page_agents(asked.services, after=asked.text("after"), starts=starts),
        "starts": starts,
        "without": asked.without,
        "line": command_line("agents", "list"),
    }


@page("/agents/{agent}", "agent.html")
async def agent(asked: PageRequest) -> Mapping[str, Any]:
    """Read one agent: its workers, limits and counters."""
    name = asked.path["agent"]
    found = await read_agent_page(asked.services, name)
    return {"found": found, "minutes": MINUTES, "line": command_line("agents", "show", name)}
