"""A form that submits a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.dashboard.page import page
from orchestrator.views.skills import list_skills

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

SHOWN = 200


@page("/submit", "submit.html")
async def submit(asked: PageRequest) -> Mapping[str, Any]:
    """Read the skills that tasks may be submitted for, and what the query fills in."""
    filled = {name: asked.text(name) or "" for name in ("skill", "args", "agent", "session", "lane")}
    return {"skills": (await list_skills(asked.services, limit=SHOWN)).skills, "filled": filled}
