"""Lists of tasks by a filter, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.dashboard.bulk import JOBS
from orchestrator.dashboard.page import page
from orchestrator.dashboard.rendering import command_line
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.selecting import TaskFilter, read_page
from orchestrator.views.selections import APPLIES_TO

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

SHOWN: Final = 50
LOOKED: Final = 120
"""Tasks that a page looks at, when a filter must look into each."""
FILTERS: Final = ("skill", "agent", "session", "tag", "parent", "queue", "reason", "error")
OPTIONS: Final = {
    "skill": "--skill",
    "agent": "--agent",
    "session": "--session",
    "tag": "--tag",
    "parent": "--parent",
    "reason": "--reason-contains",
    "error": "--error",
}
"""Options of the command line; it has none for a queue."""


@page("/tasks", "tasks.html")
async def tasks(asked: PageRequest) -> Mapping[str, Any]:
    """Read one page of the tasks that match the query, and say how far it looked."""
    wanted: dict[str, Any] = {name: asked.text(name) for name in FILTERS}
    state = asked.text("state")
    found = await read_page(
        asked.services.store,
        TaskFilter(**wanted, states=(state,) if state else ()),
        after=asked.text("after"),
        limit=SHOWN,
        at_once=at_once(wanted),
        most=LOOKED,
    )
    words = [word for name, option in OPTIONS.items() if wanted[name] for word in (option, wanted[name])]
    return {
        "found": found,
        "filters": {name: value for name, value in (("state", state), *wanted.items()) if value},
        "names": FILTERS,
        "states": tuple(TaskState),
        "bulk": {name: JOBS[name].danger for name, some in APPLIES_TO.items() if state is None or state in some},
        "without": asked.without,
        "line": command_line("tasks", "list", *(("--state", state) if state else ()), *words),
    }


def at_once(wanted: Mapping[str, Any]) -> int:
    """Return how many tasks one read of a page returns: more when a filter must look into each."""
    return LOOKED if any(wanted[name] for name in ("skill", "agent", "reason", "error")) else SHOWN
