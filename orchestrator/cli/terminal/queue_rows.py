"""Rows of queues, for `orc queues list` and `orc status`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from orchestrator.cli.terminal.active_commands import active_commands

if TYPE_CHECKING:
    from orchestrator.views.queues import QueueView

COLUMNS: Final = ("queue", "tasks", "agents", "why")


def queue_row(view: QueueView) -> dict[str, Any]:
    """Return the row of a queue for a list."""
    return {
        "queue": view.queue,
        "tasks": view.tasks,
        "bytes": view.bytes,
        "agents": view.agents,
        "serving": view.serving,
        "head": view.head,
        "cause": view.status and view.status.detail.cause,
        "why": view.status and view.status.why,
        "active_commands": active_commands(view.active_commands),
    }
