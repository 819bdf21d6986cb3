"""Lists of tasks by a filter, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.dashboard.page import page
from orchestrator.tasks.model import TaskState
from orchestrator.tasks.selecting import TaskFilter, read_page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest

SHOWN: Final = 50
FILTERS: Final = ("skill", "agent", "session", "tag", "parent", "queue", "reason", "error")


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
    )
    return {
        "found": found,
        "filters": {name: value for name, value in (("state", state), *wanted.items()) if value},
        "names": FILTERS,
        "states": tuple(TaskState),
        "without": asked.without,
    }
