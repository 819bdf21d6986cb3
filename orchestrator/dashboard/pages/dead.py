"""Dead letters in groups, with what one may do with a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.dashboard.page import page
from orchestrator.dashboard.rendering import command_line
from orchestrator.views.dead_groups import read_dead_groups

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest


@page("/dead", "dead.html")
async def dead(asked: PageRequest) -> Mapping[str, Any]:
    """Read the groups of the newest dead letters."""
    skill = asked.text("skill")
    words = ("--skill", skill) if skill else ()
    return {
        "found": await read_dead_groups(asked.services, skill=skill),
        "skill": skill,
        "line": command_line("dead", "list", "--group", "error", *words),
    }
