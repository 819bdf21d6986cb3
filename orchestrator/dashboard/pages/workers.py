"""The workers of the pool, and one worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.dashboard.page import page
from orchestrator.dashboard.rendering import command_line
from orchestrator.views.worker_pages import page_workers, read_worker_page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest


@page("/workers", "workers.html")
async def workers(asked: PageRequest) -> Mapping[str, Any]:
    """Read the live workers by id."""
    starts = asked.text("starts") or ""
    return {
        "found": await page_workers(asked.services, after=asked.text("after"), starts=starts),
        "starts": starts,
        "without": asked.without,
        "line": command_line("workers", "list"),
    }


@page("/workers/{worker}", "worker.html")
async def worker(asked: PageRequest) -> Mapping[str, Any]:
    """Read one worker and the tasks that it has."""
    id_ = asked.path["worker"]
    return {"found": await read_worker_page(asked.services, id_), "line": command_line("workers", "show", id_)}
