"""`orc queues`: list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchestrator.cli import output
from orchestrator.cli.options import DEFAULTS, Globals
from orchestrator.cli.parsing import Commands

if TYPE_CHECKING:
    from orchestrator.services import Services

commands = Commands(
    "queues",
    "Look at what waits.",
    examples="""
        orc queues list
        orc queues list -o json
    """,
)
app = commands.app


@commands.command(
    "list",
    alias="ls",
    examples="""
        orc queues list
        orc queues list -o json
    """,
)
async def list_(*, common: Globals = DEFAULTS) -> None:
    """List the queues that are not empty, and which live agents take from them.

    Args:
        common: Global options.
    """
    from orchestrator.services import open_services

    async with open_services(common.settings(), name="cli") as services:
        rows = await queue_rows(services)
    output.show_list(common.output, rows, ("queue", "tasks", "agents"), key="queue", empty="nothing waits")


async def queue_rows(services: Services) -> list[dict[str, Any]]:
    """Queues with their lengths and the live agents that serve them."""
    from orchestrator.agents import queries as agents
    from orchestrator.tasks import queries as tasks

    lengths = await tasks.queue_lengths(services.store)
    known = await agents.agents(services.store)
    return [
        {"queue": queue, "tasks": count, "agents": agents.takers(queue, known)}
        for queue, count in lengths.items()
        if count
    ]
