"""The queues, why the first task of each waits, and one queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.dashboard.page import page
from orchestrator.dashboard.rendering import command_line
from orchestrator.views.queue_pages import page_queues, read_queue

if TYPE_CHECKING:
    from collections.abc import Mapping

    from orchestrator.dashboard.page import PageRequest


@page("/queues", "queues.html")
async def queues(asked: PageRequest) -> Mapping[str, Any]:
    """Read the queues that hold tasks, are paused or drained, by name."""
    starts = asked.text("starts") or ""
    return {
        "found": await page_queues(asked.services, after=asked.text("after"), starts=starts),
        "starts": starts,
        "without": asked.without,
        "line": command_line("queues", "list"),
    }


@page("/queues/{queue}", "queue.html")
async def queue(asked: PageRequest) -> Mapping[str, Any]:
    """Read one queue: its first tasks, and the agents that take from it."""
    return {"found": await read_queue(asked.services, asked.path["queue"]), "line": command_line("queues", "list")}
