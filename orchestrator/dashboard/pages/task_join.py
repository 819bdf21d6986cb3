"""The tasks that a task joins and that have not ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.dashboard.page import page
from orchestrator.dashboard.rendering import command_line
from orchestrator.views.joins import read_join

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest


@page("/tasks/{id}/join", "task_join.html")
async def task_join(asked: PageRequest) -> Mapping[str, Any]:
    """Read a page of the tasks that a join waits for."""
    id_ = asked.path["id"]
    return {
        "id": id_,
        "found": await read_join(asked.services, id_, asked.identity.scope, after=asked.text("after")),
        "line": command_line("tasks", "why", id_),
    }
